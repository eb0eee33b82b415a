// Goal: digests of state are those of the formula on every backend, for every count, start and size of an element, and
// however the elements are cut; each changed bit changes them.
// Method: equality with the reference; boxes of many counts and starts in one op; each bit of a small state flipped once.
#include "support.h"

namespace trainctl::kernels::test {

namespace {

std::vector<uint64_t> digests_by(Backend& backend, const std::vector<DigestBox>& boxes) {
  std::vector<uint64_t> out(boxes.size(), 1);
  backend.run(*backend.create_stream(), Digest{.boxes = boxes, .out = out.data()});
  return out;
}

uint64_t sum_of(const std::vector<uint64_t>& digests) {
  uint64_t sum = 0;
  for (const uint64_t digest : digests) sum += digest;
  return sum;
}

}  // namespace

TEST_CASE("digests of every count and start equal the reference") {
  constexpr size_t kMostOfTask = 65536;  // of the CPU
  std::mt19937_64 random(56);
  std::vector<uint64_t> words(kMostOfTask);
  for (uint64_t& word : words) word = random();
  for (const DType dtype :
       {DType::f32, DType::i32, DType::u32, DType::bf16, DType::u16, DType::i8, DType::u8}) {
    std::vector<DigestBox> boxes;
    const auto add = [&](int64_t start, int64_t count) {
      char* const data = reinterpret_cast<char*>(words.data()) + start * int64_t(size_of(dtype));
      boxes.push_back({matrix(data, dtype, 1, count), random(), int64_t(random() >> 1), count});
    };
    // Whole registers of each instruction set, and what is left of them.
    for (int64_t count = 0; count < 35; ++count)
      for (const int64_t start : {0, 1, 3}) add(start, count);
    add(1, int64_t(kMostOfTask) + 1);
    const std::vector<uint64_t> expected = digests_by(reference(), boxes);
    for (const Candidate& c : candidates()) {
      INFO(c.name << ", " << name_of(dtype));
      CHECK(digests_by(*c.backend, boxes) == expected);
    }
  }
}

TEST_CASE("digests equal the reference, however the elements are cut") {
  Random random(55);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (auto [rows, cols] : {std::pair{1, 1}, {5, 19}, {300, 31}, {2, 20001}, {70, 1}})
      for (const int64_t pad : {0, 7}) {
        const Storage x = random.normal(dtype, rows, cols, pad);
        std::vector<DigestBox> boxes = {{x, 99, 1000, cols + 3}, {x->row_range(0, 1), 98, 5, cols}};
        // More than one launch takes, and none of no element.
        for (uint64_t i = 0; i < 70; ++i) boxes.push_back({x->row_range(rows - 1, 1), i, int64_t(i), cols});
        boxes.push_back({x->row_range(0, 0), 3, 0, cols});
        const std::vector<uint64_t> expected = digests_by(reference(), boxes);
        std::vector<DigestBox> pieces;
        for (int64_t r = 0; r < rows; ++r)
          for (const auto& [begin, n] :
               {std::pair<int64_t, int64_t>{0, cols / 3}, {cols / 3, cols - cols / 3}})
            pieces.push_back(
                {x->row_range(r, 1).columns(begin, n), 99, 1000 + r * (cols + 3) + begin, cols + 3});
        for (const Candidate& c : candidates()) {
          CHECK(digests_by(*c.backend, boxes) == expected);
          CHECK(sum_of(digests_by(*c.backend, pieces)) == expected[0]);
        }
      }
}

TEST_CASE("a digest of codes of one byte; each flipped bit, swapped neighbours and another place change it") {
  Storage x(DType::f32, 3, 16, 0);
  auto* const bytes = static_cast<unsigned char*>(x->data);
  for (int i = 0; i < 3 * 16 * 4; ++i) bytes[i] = static_cast<unsigned char>(i * 37);
  for (const DType dtype : {DType::u8, DType::bf16, DType::f32}) {
    const int64_t count = 3 * 16 * 4 / int64_t(size_of(dtype));
    const std::vector<DigestBox> box = {{matrix(x->data, dtype, 1, count), 1, 0, count}};
    const std::vector<DigestBox> elsewhere = {{box[0].data, 1, 1, count}},
                                 of_other = {{box[0].data, 2, 0, count}};
    const uint64_t whole = digests_by(reference(), box)[0];
    CHECK(digests_by(reference(), elsewhere)[0] != whole);
    CHECK(digests_by(reference(), of_other)[0] != whole);
    for (const Candidate& c : candidates()) CHECK(digests_by(*c.backend, box)[0] == whole);
    for (int bit = 0; bit < 3 * 16 * 4 * 8; ++bit) {
      bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ 1u << bit % 8);
      CHECK(digests_by(reference(), box)[0] != whole);
      bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ 1u << bit % 8);
    }
    std::swap(bytes[0], bytes[4]);
    CHECK(digests_by(reference(), box)[0] != whole);
    std::swap(bytes[0], bytes[4]);
  }
}

}  // namespace trainctl::kernels::test
