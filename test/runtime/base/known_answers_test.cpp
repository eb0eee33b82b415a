// Goal: Philox and the hashes are the published functions, bit for bit: a wrong constant would give other weights, orders and
// identities than any other program, and every test that compares this program with itself would pass.
// Method: the known-answer vectors of their authors: Random123 (tests/kat_vectors), xxHash 0.8 (its sanity check, every branch by
// length, with and without a seed), FIPS 180-4 for SHA-256. The class Philox is held to the function by its documented counter.
#include <catch2/catch.hpp>

#include <cmath>
#include <vector>

#include "runtime/base/hash.h"
#include "runtime/base/philox.h"

using namespace trainctl;

TEST_CASE("Philox 4x32-10 gives the known answers of Random123") {
  using Words = std::array<uint32_t, 4>;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a random stream counts its index low word first, then its stream, under seed and purpose") {
  const uint64_t seed = 0x0123456789abcdef, stream = 0x1122334455667788, index = 0x99aabbccddeeff00;
  const Philox random(seed, RandomPurpose::kTest, stream);
  const auto block = philox4x32({0xddeeff00, 0x99aabbcc, 0x55667788, 0x11223344},
                                {0x89abcdef, 0x01234567u ^ (5u * 0x85EBCA6Bu)});
  CHECK(random.block(index) == block);
  CHECK(random.bits64(index) == (uint64_t(block[1]) << 32 | block[0]));
  CHECK(random.uniform(index) == double(random.bits64(index) >> 11) / 9007199254740992.0);
  CHECK(random.normal(4 * 7 + 2) == random.normals(7)[2]);
}

TEST_CASE("uniform numbers and normals have the moments of their distributions") {
  const Philox random(1, RandomPurpose::kTest);
  const int n = 1 << 18;
  double uniform = 0, mean = 0, square = 0, fourth = 0;
  for (int i = 0; i < n; ++i) {
    const double u = random.uniform(uint64_t(i)), z = random.normal(uint64_t(i));
    REQUIRE((u >= 0 && u < 1));
    uniform += u / n, mean += z / n, square += z * z / n, fourth += z * z * z * z / n;
  }
  // Five standard errors of each mean over n draws.
  const double five = 5 / std::sqrt(double(n));
  CHECK(std::abs(uniform - 0.5) < five * std::sqrt(1.0 / 12));
  CHECK(std::abs(mean) < five);
  CHECK(std::abs(square - 1) < five * std::sqrt(2.0));
  CHECK(std::abs(fourth - 3) < five * std::sqrt(96.0));
}

TEST_CASE("XXH3 gives the known answers of xxHash, at once and in pieces") {
  // The test buffer of xxHash: the top bytes of 2654435761 * 11400714785074694797^i.
  const uint64_t prime = 11400714785074694797u;
  std::vector<std::byte> data(2367);
  uint64_t generator = 2654435761u;
  for (std::byte& byte : data) {
    byte = std::byte(generator >> 56);
    generator *= prime;
  }
  struct Answer {
    size_t length;
    uint64_t plain, seeded;
  };
  for (const Answer& answer : {Answer{0, 0x2D06800538D394C2, 0xA8A6B918B2F0364A}, {1, 0xC44BDFF4074EECDB, 0x032BE332DD766EF8},
                               {6, 0x27B56A84CD2D7325, 0x84589C116AB59AB9}, {12, 0xA713DAF0DFBB77E7, 0xE7303E1B2336DE0E},
                               {24, 0xA3FE70BF9D3510EB, 0x850E80FC35BDD690}, {48, 0x397DA259ECBA1F11, 0xADC2CBAA44ACC616},
                               {80, 0xBCDEFBBB2C47C90A, 0xC6DD0CB699532E73}, {195, 0xCD94217EE362EC3A, 0xBA68003D370CB3D9},
                               {403, 0xCDEB804D65C6DEA4, 0x6259F6ECFD6443FD}, {512, 0x617E49599013CB6B, 0x3CE457DE14C27708},
                               {2048, 0xDD59E2C3A5F038E0, 0x66F81670669ABABC}, {2240, 0x6E73A90539CF2948, 0x757BA8487D1B5247},
                               {2367, 0xCB37AEB9E5D361ED, 0xD2DB3415B942B42A}}) {
    CAPTURE(answer.length);
    const std::span<const std::byte> part(data.data(), answer.length);
    CHECK(xxh3(part) == answer.plain);
    CHECK(xxh3(part, prime) == answer.seeded);
    CHECK(xxh3(std::string_view(reinterpret_cast<const char*>(part.data()), part.size()), prime) == answer.seeded);
    for (const size_t piece : {size_t(1), size_t(7), size_t(1024)}) {
      Xxh3Stream stream(prime);
      for (size_t at = 0; at < part.size(); at += piece) stream.update(part.subspan(at, std::min(piece, part.size() - at)));
      CHECK(stream.digest() == answer.seeded);
    }
  }
}

TEST_CASE("SHA-256 gives the known answers of FIPS 180-4, and hex is lower case with leading zeros") {
  for (const size_t piece : {size_t(1), size_t(3), size_t(64), size_t(1000)}) {
    const std::string text(777, 'x');
    Sha256Stream stream;
    for (size_t at = 0; at < text.size(); at += piece)
      stream.update(std::string_view(text).substr(at, piece));
    CHECK(stream.hex() == sha256_hex(text));
  }
  CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha256_hex(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  CHECK(hex64(0x00ab) == "00000000000000ab");
}
