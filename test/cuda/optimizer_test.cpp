// Goal: AdamW on the GPU has the reference's bits, for boxes of any shape, stride and alignment, many in one launch; sums are exact to
// double precision and depend on shapes alone.
// Method: bit equality with the reference on boxes that are cut into one and into many tiles; tiles are checked to cover every element once.
#include "launched.h"

#include <array>

namespace trainctl::kernels::test {

namespace {

const AdamWStep kStep{.lr = 3e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .grad_scale = 0.37f,
                      .bias_correction1 = 0.271f, .bias_correction2 = 0.142625f};

/// Master weights, first and second moments as one row that begins `shift` elements into its storage; gradient and parameter in windows
/// of matrices with `pad` more columns.
struct Box {
  int64_t rows, cols;
  DType param_type;
  float weight_decay = 0.1f;
  std::array<int64_t, 3> shift = {};
  Window grad_window = {0, cols, 0}, param_window = {0, cols, 0};
  int64_t grad_pad = 8, param_pad = 8;
  std::vector<Storage> state = {};
  Storage grad = {}, param = {};

  Window state_window(size_t i) const { return {shift[i], rows * cols, 0}; }
  UpdateBox view(const std::vector<Matrix>& s, const Matrix& g, const Matrix& p) const {
    return {s[0].as<float>() + shift[0],
            s[1].as<float>() + shift[1],
            s[2].as<float>() + shift[2],
            grad_window(g).as<const float>(),
            g.stride,
            param_window(p),
            weight_decay,
            rows % 2 == 0 ? 1.0f : 0.7f};
  }
};

/// Of every shape with everything on 16 bytes where the shape allows it, with nothing there, and with all but one thing there.
std::vector<Box> make_boxes() {
  std::vector<Box> boxes;
  for (DType type : kActivationTypes) {
    for (auto [rows, cols] : {std::pair{1, 1}, {3, 17}, {70, 40}, {1, 40001}, {40, 1000}, {3, 20001}, {2500, 7}, {33, 64}}) {
      const Window off{1, cols, 2};
      const Box whole{rows, cols, type, rows == 1 ? 0.0f : 0.1f};
      boxes.insert(boxes.end(), 9, whole);
      Box* const b = &boxes[boxes.size() - 9];
      b[1].shift = {1, 1, 1}, b[1].grad_window = b[1].param_window = off;
      for (size_t i = 0; i < 3; ++i) b[2 + i].shift[i] = 1;
      b[5].grad_window = off, b[6].param_window = off;
      b[7].grad_pad = 9, b[8].param_pad = 9;
    }
  }
  Random random(51);
  for (Box& b : boxes) {
    for (size_t i = 0; i < 3; ++i) b.state.push_back(random.normal(DType::f32, 1, b.shift[i] + b.rows * b.cols));
    for (int64_t i = 0; i < b.state[2]->cols; ++i) b.state[2].f32()[i] = std::abs(b.state[2].f32()[i]);
    b.grad = random.normal(DType::f32, b.rows, b.grad_window.width(), b.grad_pad);
    b.param = random.normal(b.param_type, b.rows, b.param_window.width(), b.param_pad);
    for (int64_t r = 0; r < b.rows; ++r) b.param.set(r, b.param_window.first, kPoison);
  }
  return boxes;
}

std::vector<Matrix> views(const std::vector<Storage>& storages) { return {storages.begin(), storages.end()}; }

std::vector<cuda::Tile> tiles_for(const std::vector<Box>& boxes) {
  std::vector<Matrix> params;
  for (const Box& b : boxes) params.push_back(b.param_window(b.param));
  return cuda::tiles_of(params);
}

}  // namespace

TEST_CASE("tiles cover every element of every box once and are of about one size") {
  std::vector<Matrix> boxes;
  for (int64_t rows : {0, 1, 2, 3, 21, 22, 500, 16385}) {
    for (int64_t cols : {0, 1, 3, 4, 768, 769, 2051, 16384, 16385, 40001}) {
      if (rows * cols < 20'000'000) boxes.push_back({nullptr, DType::f32, rows, cols, cols + 5});
    }
  }
  const std::vector<cuda::Tile> tiles = cuda::tiles_of(boxes);
  size_t next = 0;
  for (size_t box = 0; box < boxes.size(); ++box) {
    INFO("[" << boxes[box].rows << ", " << boxes[box].cols << "]");
    std::vector<char> covered(size_t(boxes[box].count()), 0);
    const size_t first = next;
    for (; next < tiles.size() && tiles[next].box == int32_t(box); ++next) {
      const cuda::Tile& t = tiles[next];
      REQUIRE((t.rows > 0 && t.cols > 0 && int64_t(t.rows) * t.cols <= cuda::kOptimizerTileElements));
      CHECK(t.col % 4 == 0);
      for (int64_t r = t.row; r < t.row + t.rows; ++r) {
        for (int64_t c = t.col; c < t.col + t.cols; ++c) ++covered.at(size_t(r * boxes[box].cols + c));
      }
    }
    CHECK(std::count(covered.begin(), covered.end(), 1) == boxes[box].count());
    CHECK(int64_t(next - first) <= cuda::most_tiles(boxes[box].count(), 1));
  }
  CHECK(next == tiles.size());
}

namespace {

/// O: a rule's op. launch: its kernel.
template <typename O>
void check_many_boxes(const decltype(O::step)& step, auto launch) {
  const std::vector<Box> boxes = make_boxes();
  std::vector<Box> expected = boxes;
  std::vector<UpdateBox> host;
  for (Box& b : expected) host.push_back(b.view(views(b.state), b.grad, b.param));
  reference().run(*reference().create_stream(), O{.boxes = host, .step = step});

  const std::vector<cuda::Tile> tiles = tiles_for(boxes);
  each_order(1, [&](const cuda::Queue& queue) {
    OnDevice device(queue);
    std::vector<std::vector<Matrix>> states;
    std::vector<Matrix> params;
    std::vector<UpdateBox> on_device;
    for (const Box& b : boxes) {
      states.push_back({device.copy_of(b.state[0]), device.copy_of(b.state[1]), device.copy_of(b.state[2])});
      params.push_back(device.copy_of(b.param));
      on_device.push_back(b.view(states.back(), device.copy_of(b.grad), params.back()));
    }
    launch(queue, device.copy_of(on_device), device.copy_of(tiles), int64_t(tiles.size()), Moments::f32,
           step);
    for (size_t i = 0; i < boxes.size(); ++i) {
      const Box& b = boxes[i];
      INFO("box " << i << " [" << b.rows << ", " << b.cols << "] " << name_of(b.param_type));
      Box got = b;
      for (size_t s = 0; s < 3; ++s) {
        device.bring_back(states[i][s], got.state[s]);
        CHECK((got.state[s].content() == expected[i].state[s].content()));
        CHECK(unchanged_around(b.state_window(s), b.state[s], got.state[s]));
      }
      device.bring_back(params[i], got.param);
      CHECK((window_bits(b.param_window, got.param) == window_bits(b.param_window, expected[i].param)));
      CHECK(unchanged_around(b.param_window, b.param, got.param));
    }
  });
}

}  // namespace

TEST_CASE("a rule's update of many boxes in one launch has the reference's bits") {
  check_many_boxes<AdamW>(kStep, cuda::adamw);
  check_many_boxes<Lion>({.lr = 3e-4f, .beta1 = 0.9f, .beta2 = 0.97f, .grad_scale = 0.37f}, cuda::lion);
  check_many_boxes<Sgd>({.lr = 3e-4f, .momentum = 0.9f, .grad_scale = 0.37f}, cuda::sgd);
}

TEST_CASE("adamw of extreme numbers has the reference's bits") {
  // Denormals, zeros and large gradients: nothing may be flushed or fused.
  const int64_t n = 64;
  std::vector<Storage> state(3, Storage(DType::f32, 1, n, 0));
  Storage grad(DType::f32, 1, n, 0), param(DType::bf16, 1, n, 0);
  Random random(52);
  const Storage draw = random.normal(DType::f32, 4, n);
  for (int64_t i = 0; i < n; ++i) {
    const float size = std::ldexp(1.0f, int(i * 4) - 140);
    for (size_t s = 0; s < 3; ++s) state[s].set(0, i, s == 2 ? std::abs(draw.get(2, i)) * size : draw.get(int64_t(s), i) * size);
    grad.set(0, i, draw.get(3, i) * (i % 3 == 0 ? 0.0f : size));
  }
  std::vector<Storage> expected = state;
  Storage expected_param = param;
  const UpdateBox host[] = {
      {expected[0].f32(), expected[1].f32(), expected[2].f32(), grad.f32(), n, expected_param, 0.1f}};
  reference().run(*reference().create_stream(), AdamW{.boxes = host, .step = kStep});
  each_order(0, [&](const cuda::Queue& queue) {
    OnDevice device(queue);
    const Matrix w = device.copy_of(state[0]), m = device.copy_of(state[1]), v = device.copy_of(state[2]);
    const Matrix g = device.copy_of(grad), p = device.copy_of(param);
    const std::vector<UpdateBox> boxes = {
        {w.as<float>(), m.as<float>(), v.as<float>(), g.as<float>(), n, p, 0.1f}};
    const std::vector<Matrix> params = {p};
    const std::vector<cuda::Tile> tiles = cuda::tiles_of(params);
    cuda::adamw(queue, device.copy_of(boxes), device.copy_of(tiles), int64_t(tiles.size()), Moments::f32,
                kStep);
    std::vector<Storage> got = state;
    Storage got_param = param;
    device.bring_back(w, got[0]);
    device.bring_back(m, got[1]);
    device.bring_back(v, got[2]);
    device.bring_back(p, got_param);
    for (size_t s = 0; s < 3; ++s) CHECK((got[s].content() == expected[s].content()));
    CHECK((got_param.content() == expected_param.content()));
  });
}

namespace {

std::vector<double> square_sums(const cuda::Queue& queue, const std::vector<Storage>& storages, const std::vector<Window>& windows) {
  OnDevice device(queue);
  std::vector<Matrix> boxes;
  for (size_t i = 0; i < storages.size(); ++i) boxes.push_back(windows[i](device.copy_of(storages[i])));
  const std::vector<cuda::Tile> tiles = cuda::tiles_of(boxes);
  std::vector<int64_t> first_tile(boxes.size() + 1, int64_t(tiles.size()));
  for (size_t box = 0; box < boxes.size(); ++box) {
    first_tile[box] = std::find_if(tiles.begin(), tiles.end(), [&](const cuda::Tile& t) { return t.box >= int32_t(box); }) - tiles.begin();
  }
  auto* partial = static_cast<double*>(device.poisoned(tiles.size() * sizeof(double)));
  auto* out = static_cast<double*>(device.poisoned(boxes.size() * sizeof(double)));
  cuda::sum_squares(queue, device.copy_of(boxes), int64_t(boxes.size()), device.copy_of(tiles), int64_t(tiles.size()),
                    device.copy_of(first_tile), partial, out);
  std::vector<double> result(boxes.size());
  device.bring_back(out, result.data(), result.size() * sizeof(double));
  return result;
}

}  // namespace

TEST_CASE("sums of squares by launchers: double precision, one order for a shape") {
  const std::vector<std::pair<int64_t, int64_t>> shapes = {{1, 1}, {5, 19}, {300, 301}, {2, 20000}, {0, 5}, {1000, 3}, {37, 768}};
  std::vector<double> bits;
  for (size_t kind : {0, 1, 2}) {
    std::vector<Storage> storages;
    std::vector<Window> own;
    std::vector<double> expected(shapes.size());
    std::vector<Matrix> host;
    for (size_t i = 0; i < shapes.size(); ++i) {
      const auto [rows, cols] = shapes[i];
      own.push_back(windows(cols)[kind]);
      Random random(uint32_t(60 + i));
      const Storage values = random.normal(DType::f32, rows, cols);
      storages.emplace_back(DType::f32, rows, own[i].width(), 8);
      storages[i].fill(kPoison);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < cols; ++c) storages[i].set(r, own[i].first + c, values.get(r, c));
      }
      host.push_back(own[i](storages[i]));
    }
    reference().run(*reference().create_stream(), SumSquares{.boxes = host, .out = expected.data()});
    each_order(1, [&](const cuda::Queue& queue) {
      const std::vector<double> got = square_sums(queue, storages, own);
      for (size_t i = 0; i < shapes.size(); ++i) {
        INFO("[" << shapes[i].first << ", " << shapes[i].second << "]");
        CHECK(got[i] == Approx(expected[i]).epsilon(tolerance::kDoubleTreeSum));
      }
      if (bits.empty()) bits = got;
      CHECK(got == bits);
      // A box's sum does not depend on the boxes beside it.
      const std::vector<double> alone = square_sums(queue, {storages[2]}, {own[2]});
      CHECK(alone[0] == got[2]);
    });
  }
}

TEST_CASE("sums by launchers: double precision, one order for a length") {
  for (int64_t n : {0, 1, 9, 255, 4096, 4097, 50000}) {
    Random random(70);
    const Storage x = random.normal(DType::f32, 1, n);
    double expected = 0;
    reference().run(*reference().create_stream(), Sum{.x = x.f32(), .n = n, .out = &expected});
    std::vector<double> bits;
    each_order(1, [&](const cuda::Queue& queue) {
      OnDevice device(queue);
      const Matrix on_device = device.copy_of(x);
      auto* out = static_cast<double*>(device.poisoned(sizeof(double)));
      cuda::sum(queue, on_device.as<const float>(), n, out, device.poisoned(cuda::sum_scratch(n)));
      double got = NAN;
      device.bring_back(out, &got, sizeof got);
      INFO("n = " << n);
      CHECK(got == Approx(expected).epsilon(tolerance::kDoubleSum).margin(tolerance::kDoubleSum));
      if (bits.empty()) bits.push_back(got);
      CHECK(got == bits[0]);
    });
  }
}

}  // namespace trainctl::kernels::test
