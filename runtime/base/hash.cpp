#include "runtime/base/hash.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include TRAINCTL_XXHASH   // CMake chooses: <xxh_x86dispatch.h> or <xxhash.h>

#include "runtime/base/error.h"

namespace trainctl {

uint64_t xxh3(std::span<const std::byte> data, uint64_t seed) {
  return XXH3_64bits_withSeed(data.data(), data.size(), seed);
}

uint64_t xxh3(std::string_view text, uint64_t seed) { return XXH3_64bits_withSeed(text.data(), text.size(), seed); }

Xxh3Stream::Xxh3Stream(uint64_t seed) : state_(XXH3_createState()) {
  ENSURE(state_ != nullptr);
  XXH3_64bits_reset_withSeed(static_cast<XXH3_state_t*>(state_), seed);
}
Xxh3Stream::~Xxh3Stream() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }
void Xxh3Stream::update(std::span<const std::byte> data) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), data.data(), data.size());
}
uint64_t Xxh3Stream::digest() const { return XXH3_64bits_digest(static_cast<XXH3_state_t*>(state_)); }

std::string sha256_hex(std::string_view text) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  std::string out;
  for (unsigned char byte : digest) out += fmt::format("{:02x}", byte);
  return out;
}

Sha256Stream::Sha256Stream() : context_(EVP_MD_CTX_new()) {
  ENSURE(context_ && EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_), EVP_sha256(), nullptr) == 1);
}
Sha256Stream::~Sha256Stream() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }
void Sha256Stream::update(std::string_view piece) {
  ENSURE(EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), piece.data(), piece.size()) == 1);
}
std::string Sha256Stream::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  ENSURE(EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_), digest, &length) == 1);
  std::string out;
  for (unsigned i = 0; i < length; ++i) out += fmt::format("{:02x}", digest[i]);
  return out;
}

std::string hex64(uint64_t value) {
  std::string out(16, '0');
  for (size_t i = 16; i-- > 0; value >>= 4) out[i] = "0123456789abcdef"[value & 15];
  return out;
}

}  // namespace trainctl
