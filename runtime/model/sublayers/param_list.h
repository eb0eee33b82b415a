// The declaration of a parameter by its sublayer. The table of parameters (runtime/model/params.h) is made
// from these declarations.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/layout.h"

namespace trainctl {

/// selection_bias: of experts, for their choice alone; counts of tokens change it.
enum class ParamRole {
  embedding,
  position,
  norm_weight,
  norm_bias,
  bias,
  matrix,
  head,
  router,
  selection_bias
};

/// A parameter of a sublayer.
struct ParamDeclaration {
  std::string name;              ///< below that of its layer: "attn.c_attn.weight"
  ParamRole role = ParamRole::matrix;
  int64_t rows = 0, cols = 1;
  parallel::Cut cut = parallel::Cut::none;
  std::vector<int64_t> sections = {};
  bool residual = false;         ///< feeds the residual stream: smaller initial values
  int place = -1;                ///< in its sublayer, whose own numbers these are
  bool joined = false;           ///< lies directly behind the one before, as one taller matrix
  double init_mean = 0;
  bool partial = false;  ///< held whole by each tensor rank, which computes with a part of its uses
  int64_t head_rows = 0;  ///< of a weight of queries, keys or values: the rows of a head
  int expert = -1;        ///< whose it is; -1: no expert's
  bool operator==(const ParamDeclaration&) const = default;
};

/// Writes a sublayer's declarations. Places: of the weight and, where there is one, of the bias.
class ParamList {
 public:
  struct Linear {
    std::string name;
    int64_t out = 0, in = 0;
    parallel::Cut cut = parallel::Cut::none;
    std::vector<int64_t> sections = {};
    bool residual = false, joined = false;
    int64_t head_rows = 0;
    int expert = -1;
  };
  struct Places {
    int weight = -1, bias = -1;
  };
  struct Norm {
    std::string name;
    int64_t size = 0;
    bool one_plus = false;  ///< multiplies by 1 + its weight, which begins as 0
    parallel::Cut cut = parallel::Cut::none;
    bool partial = false;
  };
  void norm(const Norm& norm, Places places);
  void weight(const Linear& linear, int place);
  void bias(const Linear& linear, int place);
  void linear(const Linear& l, Places places) {
    weight(l, places.weight);
    if (places.bias >= 0) bias(l, places.bias);
  }
  void add(ParamDeclaration declaration) { list_.push_back(std::move(declaration)); }
  std::vector<ParamDeclaration> take() { return std::move(list_); }

 private:
  std::vector<ParamDeclaration> list_;
};

}  // namespace trainctl
