#include "data/clean/line_writer.h"

#include <zstd.h>

#include "runtime/base/error.h"

namespace trainctl::data {
namespace {
constexpr size_t kPiece = size_t(1) << 20;
}

struct LineWriter::Packer {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  std::string packed = std::string(ZSTD_CStreamOutSize(), '\0');
  ~Packer() { ZSTD_freeCCtx(context); }
};

LineWriter::LineWriter(FileSystem& fs, const std::string& path, int zstd_threads) : file_(fs.create(path)) {
  waiting_.reserve(kPiece);
  if (zstd_threads <= 0) return;
  packer_ = std::make_unique<Packer>();
  ENSURE(packer_->context != nullptr);
  ZSTD_CCtx_setParameter(packer_->context, ZSTD_c_checksumFlag, 1);
  // A library without threads refuses this, and packs in the calling thread.
  ZSTD_CCtx_setParameter(packer_->context, ZSTD_c_nbWorkers, zstd_threads);
}

LineWriter::~LineWriter() = default;

void LineWriter::add(std::string_view line) {
  waiting_ += line;
  waiting_ += '\n';
  if (waiting_.size() >= kPiece) flush(false);
}

void LineWriter::complete() {
  flush(true);
  file_->sync();
}

void LineWriter::flush(bool is_last) {
  if (!packer_) {
    write(waiting_);
  } else {
    ZSTD_inBuffer in{waiting_.data(), waiting_.size(), 0};
    for (bool is_done = false; !is_done;) {
      ZSTD_outBuffer out{packer_->packed.data(), packer_->packed.size(), 0};
      const size_t left =
          ZSTD_compressStream2(packer_->context, &out, &in, is_last ? ZSTD_e_end : ZSTD_e_continue);
      ENSURE(!ZSTD_isError(left), "zstd: {}", ZSTD_getErrorName(left));
      write(std::string_view(packer_->packed).substr(0, out.pos));
      is_done = is_last ? left == 0 : in.pos == in.size;
    }
  }
  waiting_.clear();
}

void LineWriter::write(std::string_view bytes) {
  file_->write_at(written_, std::as_bytes(std::span(bytes)));
  written_ += bytes.size();
}

}  // namespace trainctl::data
