#include "runtime/exchange/config_parts.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace trainctl::config_parts {
namespace {

constexpr const char *kSliding = "sliding_attention", *kFull = "full_attention";

/// The kinds of all layers.
std::vector<LayerKind> all_kinds(const ModelSpec& m) {
  std::vector<LayerKind> kinds;
  for (int64_t i = 0; i < m.num_layers; ++i) kinds.push_back(m.kind_of_layer(i));
  return kinds;
}

/// In the shortest form: the pattern that is repeated.
void set_kinds(ModelSpec& m, const std::vector<LayerKind>& kinds) {
  const auto all = [&](LayerKind kind) {
    return std::all_of(kinds.begin(), kinds.end(), [&](LayerKind k) { return k == kind; });
  };
  if (std::none_of(kinds.begin(), kinds.end(), has_window)) m.layer.window = 0;
  m.layers.clear();
  if (all(LayerKind::full) || all(LayerKind::window)) return;
  size_t period = 1;
  const auto repeats = [&] {
    if (kinds.size() % period != 0) return false;
    for (size_t i = period; i < kinds.size(); ++i)
      if (kinds[i] != kinds[i - period]) return false;
    return true;
  };
  while (!repeats()) ++period;
  m.layers.assign(kinds.begin(), kinds.begin() + std::ptrdiff_t(period));
}

LayerKind with_window(LayerKind kind, bool window) {
  if (has_positions(kind)) return window ? LayerKind::window : LayerKind::full;
  return window ? LayerKind::window_nope : LayerKind::full_nope;
}

OrderedJson layer_types(const ModelSpec& m) {
  OrderedJson types = OrderedJson::array();
  for (const LayerKind kind : all_kinds(m)) types.push_back(has_window(kind) ? kSliding : kFull);
  return types;
}

/// 0: none.
int64_t window_length(const ConfigReader& r, int64_t absent = WindowRule{}.absent) {
  if (!r.mentions("sliding_window")) return absent;
  return is_nothing(r.at("sliding_window")) ? 0 : r.size("sliding_window");
}
OrderedJson window_json(const ModelSpec& m) {
  return m.layer.window > 0 ? OrderedJson(m.layer.window) : OrderedJson();
}

/// One entry for each layer.
const Json& list_of_layers(const ConfigReader& r, const std::string& key, int64_t layers) {
  const Json& list = r.at(key);
  if (!list.is_array() || int64_t(list.size()) != layers)
    r.refuse("{} is {}, not a list with an entry for each of the {} layers", r.name_of(key), dump_json(list),
             layers);
  return list;
}

std::vector<bool> windows_by_types(const ConfigReader& r, const ModelSpec& m) {
  std::vector<bool> windows;
  for (const Json& type : list_of_layers(r, "layer_types", m.num_layers)) {
    if (type != kSliding && type != kFull)
      r.refuse("layer_types has {}; trainctl computes {} and {}", dump_json(type), kFull, kSliding);
    windows.push_back(type == kSliding);
  }
  return windows;
}

RopeScalingSpec read_scaling(const ConfigReader& r, const ModelSpec& m) {
  const std::string type = r.word("rope_type", r.word("type", "default"));
  RopeScalingSpec s;
  std::vector<std::string_view> known = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
  if (type != "default") {
    if (type != "linear" && type != "llama3" && type != "yarn")
      r.refuse("{} is \"{}\"; trainctl computes default, linear, llama3 and yarn", r.name_of("rope_type"),
               type);
    s.type = of_word<RopeScaling>(type).value();
    if (!r.has("factor")) r.refuse("it has no {}", r.name_of("factor"));
    s.factor = r.number("factor", 1);
    known.push_back("factor");
  }
  if (s.type == RopeScaling::llama3 || s.type == RopeScaling::yarn) {
    s.original_max_seq_len = r.size("original_max_position_embeddings", m.max_seq_len);
    known.push_back("original_max_position_embeddings");
  }
  if (s.type == RopeScaling::llama3) {
    s.low_freq_factor = r.number("low_freq_factor", 1);
    s.high_freq_factor = r.number("high_freq_factor", 4);
    known.insert(known.end(), {"low_freq_factor", "high_freq_factor"});
  }
  if (s.type == RopeScaling::yarn) {
    s.beta_fast = r.number("beta_fast", 32);
    s.beta_slow = r.number("beta_slow", 1);
    s.attention_factor = r.number("attention_factor", 0);
    s.mscale = r.number("mscale", 0);
    s.mscale_all_dim = r.number("mscale_all_dim", 0);
    s.truncate = r.boolean("truncate", true);
    known.insert(known.end(),
                 {"beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"});
  }
  for (const auto& [name, value] : r.all().items())
    if (std::find(known.begin(), known.end(), name) == known.end() && !is_nothing(value))
      r.refuse("{} is {}; trainctl does not compute it", r.name_of(name), dump_json(value));
  return s;
}

OrderedJson scaling_json(const ModelSpec& m) {
  const RopeScalingSpec& s = m.position.scaling;
  if (s.type == RopeScaling::none) return {{"rope_type", "default"}};
  OrderedJson json{{"rope_type", std::string(word_of(s.type))}, {"factor", s.factor}};
  if (s.type == RopeScaling::linear) return json;
  json["original_max_position_embeddings"] = m.original_seq_len();
  if (s.type == RopeScaling::llama3) {
    json["low_freq_factor"] = s.low_freq_factor;
    json["high_freq_factor"] = s.high_freq_factor;
    return json;
  }
  json["beta_fast"] = s.beta_fast;
  json["beta_slow"] = s.beta_slow;
  if (s.attention_factor > 0) json["attention_factor"] = s.attention_factor;
  if (s.mscale > 0) json["mscale"] = s.mscale;
  if (s.mscale_all_dim > 0) json["mscale_all_dim"] = s.mscale_all_dim;
  if (!s.truncate) json["truncate"] = false;
  return json;
}

class Rope {
 public:
  explicit Rope(RopeKeys keys) : keys_(keys) {}

  void read(const ConfigReader& r, ModelSpec& m) const {
    PositionSpec& p = m.position;
    if (keys_.must_be_said && is_nothing(r.at("rope_scaling")) && is_nothing(r.at("rope_parameters")))
      r.refuse(
          "it has neither rope_scaling nor rope_parameters, and transformers' versions differ in what that "
          "means; write the one that it was trained with");
    p.theta = r.number("rope_theta", keys_.theta);
    read_part(r, m, keys_.rotary_fraction > 0 ? keys_.rotary_fraction : 1);
    if (!is_nothing(r.at("rope_scaling"))) read_one(r, r.object("rope_scaling"), m);
    std::optional<double> window;
    if (!is_nothing(r.at("rope_parameters"))) {
      const ConfigReader parameters = r.object("rope_parameters");
      if (parameters.has(kFull)) {
        read_one(r, parameters.object(kFull), m);
        if (!p.scaling.truncate)
          parameters.object(kFull).refuse("rope_parameters.full_attention.truncate is false; transformers read it as true");
        if (parameters.has(kSliding)) window = read_window(parameters.object(kSliding), m);
      } else {
        if (by_kind() && read_scaling(parameters, m).type != RopeScaling::none)
          r.refuse("rope_parameters is scaled for all layers; transformers want full_attention and sliding_attention "
                   "apart in this family");
        read_one(r, parameters, m);
      }
    }
    const bool is_scaled = p.scaling.type != RopeScaling::none;
    if (!window && keys_.window_theta) window = r.number(keys_.window_theta, 10000);
    if (!window && keys_.window_is_plain && is_scaled) window = p.theta;
    p.window_theta = window && (is_scaled || *window != p.theta) ? *window : 0;
  }

  void write(const ModelSpec& m, OrderedJson& config) const {
    if (!m.is_rotary()) return;
    const PositionSpec& p = m.position;
    OrderedJson full{{"rope_theta", p.theta}},
        window{{"rope_theta", window_theta(p)}, {"rope_type", "default"}};
    full.update(scaling_json(m));
    if (keys_.rotary_fraction > 0)
      full["partial_rotary_factor"] = config["partial_rotary_factor"] = p.rotary_fraction;
    config["rope_theta"] = p.theta;  // version 4
    config["rope_scaling"] = p.scaling.type == RopeScaling::none ? OrderedJson() : scaling_json(m);
    if (keys_.window_theta) config[keys_.window_theta] = window_theta(p);
    if (by_kind())  // version 5
      config["rope_parameters"] = {{kFull, full}, {kSliding, window}};
    else
      config["rope_parameters"] = full;
  }

 private:
  /// The classes of most families turn whole heads, whatever the key says.
  void read_part(const ConfigReader& r, ModelSpec& m, double absent) const {
    const double part = r.number("partial_rotary_factor", absent);
    if (keys_.rotary_fraction == 0 && part != 1)
      r.refuse("{} is {}; in this family whole heads turn", r.name_of("partial_rotary_factor"),
               dump_json(r.at("partial_rotary_factor")));
    m.position.rotary_fraction = part;
  }
  bool by_kind() const { return keys_.window_theta || keys_.window_is_plain; }
  static double window_theta(const PositionSpec& p) { return p.window_theta > 0 ? p.window_theta : p.theta; }

  void read_one(const ConfigReader& whole, const ConfigReader& r, ModelSpec& m) const {
    PositionSpec& p = m.position;
    if (r.has("rope_theta")) {
      const double theta = r.number("rope_theta", 0);
      if (whole.has("rope_theta") && p.theta != theta)
        r.refuse("rope_theta is {} but {} is {}", p.theta, r.name_of("rope_theta"),
                 dump_json(r.at("rope_theta")));
      p.theta = theta;
    }
    read_part(r, m, p.rotary_fraction);
    if (const RopeScalingSpec scaling = read_scaling(r, m); scaling.type != RopeScaling::none)
      p.scaling = scaling;
  }
  /// The theta of windowed layers, which turn without scaling.
  double read_window(const ConfigReader& r, ModelSpec& m) const {
    if (read_scaling(r, m).type != RopeScaling::none)
      r.refuse("{} is {}; trainctl turns windowed layers of this family without scaling", r.name_of("rope_type"),
               dump_json(r.at("rope_type")));
    read_part(r, m, m.position.rotary_fraction);
    return r.number("rope_theta", m.position.theta);
  }

  RopeKeys keys_;
};

/// The number whose 1 / sqrt is the scale of scores. transformers 5 take whole ones only, so that another
/// scale has no place in a file.
int64_t query_scalar(const ModelSpec& m) {
  const double scale = m.layer.score_scale;
  return scale == 0 ? m.head_dim() : std::llround(1 / (scale * scale));
}

/// The row with that name in a config.json, which also has other names for some.
std::optional<FfnActivation> activation_of(std::string_view name, bool gated) {
  if (name == "swish") name = "silu";
  if (name == "gelu_new") name = "gelu_pytorch_tanh";
  for (const kernels::FfnActivationRow& row : kernels::kFfnActivations)
    if (row.in_config == name && row.is_gated() == gated && !name.empty()) return row.activation;
  return std::nullopt;
}

}  // namespace

ConfigPart size(const char* key, int64_t ModelSpec::*member) {
  return {{key},
          [=](const ConfigReader& r, ModelSpec& m) { m.*member = r.size(key); },
          [=](const ModelSpec& m, OrderedJson& config) { config[key] = m.*member; }};
}

ConfigPart number(const char* key, double ModelSpec::*member, double absent) {
  return {{key},
          [=](const ConfigReader& r, ModelSpec& m) { m.*member = r.number(key, absent); },
          [=](const ModelSpec& m, OrderedJson& config) { config[key] = m.*member; }};
}

ConfigPart initializer_range() {
  constexpr const char* kKey = "initializer_range";
  return {{kKey},
          [](const ConfigReader& r, ModelSpec& m) { m.init.std = r.number(kKey, 0.02); },
          [](const ModelSpec& m, OrderedJson& config) { config[kKey] = m.init.std; }};
}

ConfigPart fixed(const char* key, const char* value, std::vector<const char*> also) {
  return {{key},
          [=](const ConfigReader& r, ModelSpec&) {
            const Json& found = r.at(key);
            if (found.is_null() || found == parse_json(value)) return;
            for (const char* same : also)
              if (found == parse_json(same)) return;
            r.refuse("{} is {}; trainctl computes {} only", key, dump_json(found), value);
          },
          [=](const ModelSpec&, OrderedJson& config) { config[key] = parse_ordered_json(value); }};
}

ConfigPart kv_heads(bool may_be_absent) {
  return {{"num_key_value_heads"},
          [=](const ConfigReader& r, ModelSpec& m) {
            m.num_kv_heads =
                r.size("num_key_value_heads", may_be_absent ? std::optional(m.num_heads) : std::nullopt);
          },
          [](const ModelSpec& m, OrderedJson& config) { config["num_key_value_heads"] = m.num_kv_heads; }};
}

ConfigPart head_dim(int64_t absent) {
  return {{"head_dim"},
          [=](const ConfigReader& r, ModelSpec& m) {
            if (!r.has("head_dim") && absent == 0 && m.hidden_size % m.num_heads != 0)
              r.refuse("it has no head_dim, and hidden_size / num_attention_heads is {} / {}", m.hidden_size,
                       m.num_heads);
            m.head_dim_given = r.size("head_dim", absent > 0 ? absent : m.hidden_size / m.num_heads);
          },
          [](const ModelSpec& m, OrderedJson& config) { config["head_dim"] = m.head_dim(); }};
}

ConfigPart ffn(const char* key, bool may_be_null) {
  return {{key},
          [=](const ConfigReader& r, ModelSpec& m) {
            m.ffn_size = r.size(key, may_be_null ? std::optional(4 * m.hidden_size) : std::nullopt);
          },
          [=](const ModelSpec& m, OrderedJson& config) { config[key] = m.ffn_size; }};
}

ConfigPart attention_bias() {
  return {{"attention_bias"},
          [](const ConfigReader& r, ModelSpec& m) {
            m.layer.qkv_bias = m.layer.out_bias = r.boolean("attention_bias", false);
          },
          [](const ModelSpec& m, OrderedJson& config) { config["attention_bias"] = m.layer.qkv_bias; }};
}

ConfigPart mlp_bias() {
  return {{"mlp_bias"},
          [](const ConfigReader& r, ModelSpec& m) { m.layer.mlp_bias = r.boolean("mlp_bias", false); },
          [](const ModelSpec& m, OrderedJson& config) { config["mlp_bias"] = m.layer.mlp_bias; }};
}

ConfigPart activation(const char* key, bool gated) {
  const auto read = [=](const ConfigReader& r, ModelSpec& m) {
    if (!r.has(key)) return;
    const Json& name = r.at(key);
    const auto known = activation_of(name.is_string() ? name.get<std::string>() : "", gated);
    if (!known)
      r.refuse("{} is {}; trainctl computes silu, gelu_pytorch_tanh and gelu", key, dump_json(name));
    m.layer.activation = *known;
  };
  const auto write = [=](const ModelSpec& m, OrderedJson& config) {
    const kernels::FfnActivationRow& row = kernels::row_of(m.layer.activation);
    if (row.is_gated() != gated || row.in_config.empty()) return;
    config[key] = row.activation == FfnActivation::gelu ? "gelu_new" : row.in_config;
  };
  return {{key}, read, write};
}

ConfigPart ignored(const char* key) {
  return {{key}, [](const ConfigReader&, ModelSpec&) {}, [](const ModelSpec&, OrderedJson&) {}};
}

ConfigPart rope(RopeKeys keys) {
  ConfigPart part{{"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"},
                  [rope = Rope(keys)](const ConfigReader& r, ModelSpec& m) { rope.read(r, m); },
                  [rope = Rope(keys)](const ModelSpec& m, OrderedJson& config) { rope.write(m, config); }};
  if (keys.window_theta) part.keys.push_back(keys.window_theta);
  return part;
}

ConfigPart window_of_all() {
  return {{"sliding_window"},
          [](const ConfigReader& r, ModelSpec& m) { m.layer.window = window_length(r); },
          [](const ModelSpec& m, OrderedJson& config) { config["sliding_window"] = window_json(m); }};
}

ConfigPart windows(WindowRule rule) {
  const auto read = [=](const ConfigReader& r, ModelSpec& m) {
    const bool used = rule.period > 0 || r.boolean("use_sliding_window", false);
    m.layer.window = used ? window_length(r, rule.absent) : 0;
    std::vector<LayerKind> kinds = all_kinds(m);
    std::vector<bool> windowed(kinds.size(), false);
    if (!is_nothing(r.at("layer_types"))) {
      windowed = windows_by_types(r, m);
      if (m.layer.window == 0 && std::count(windowed.begin(), windowed.end(), true) > 0)
        r.refuse("layer_types has {}, and there is no sliding_window", kSliding);
    } else if (m.layer.window > 0) {
      if (rule.needs_types)
        r.refuse(
            "use_sliding_window is true, and there is no layer_types; transformers' versions differ in what "
            "that means");
      if (rule.period == 0 && !rule.by_use_key) r.refuse("it has a sliding_window, and no layer_types");
      const int64_t every =
          rule.has_pattern_key ? r.size("sliding_window_pattern", rule.period) : rule.period;
      const int64_t first = rule.period > 0 ? 0 : r.size("max_window_layers", 28);
      for (int64_t i = 0; i < m.num_layers; ++i)
        windowed[size_t(i)] = every > 0 ? (i + 1) % every != 0 : i >= first;
    }
    for (size_t i = 0; i < kinds.size(); ++i) kinds[i] = with_window(kinds[i], windowed[i]);
    set_kinds(m, kinds);
  };
  const auto write = [=](const ModelSpec& m, OrderedJson& config) {
    config["sliding_window"] = window_json(m);
    config["layer_types"] = layer_types(m);
    if (rule.period > 0) return;
    config["use_sliding_window"] = m.layer.window > 0;
    const std::vector<LayerKind> kinds = all_kinds(m);
    const auto first = std::find_if(kinds.begin(), kinds.end(), has_window) - kinds.begin();
    if (rule.by_use_key) config["max_window_layers"] = std::max<int64_t>(1, first);
  };
  return {
      {"sliding_window", "layer_types", "use_sliding_window", "max_window_layers", "sliding_window_pattern"},
      read,
      write};
}

ConfigPart nope_layers() {
  return {{"no_rope_layers", "no_rope_layer_interval"},
          [](const ConfigReader& r, ModelSpec& m) {
            std::vector<LayerKind> kinds = all_kinds(m);
            const int64_t every = r.size("no_rope_layer_interval", 4);
            const bool listed = !is_nothing(r.at("no_rope_layers"));
            if (listed) list_of_layers(r, "no_rope_layers", m.num_layers);
            for (size_t i = 0; i < kinds.size(); ++i) {
              const bool turns = listed ? r.at("no_rope_layers")[i] == 1 : (int64_t(i) + 1) % every != 0;
              if (!turns) kinds[i] = has_window(kinds[i]) ? LayerKind::window_nope : LayerKind::full_nope;
            }
            set_kinds(m, kinds);
          },
          [](const ModelSpec& m, OrderedJson& config) {
            OrderedJson turns = OrderedJson::array();
            for (const LayerKind kind : all_kinds(m)) turns.push_back(has_positions(kind) ? 1 : 0);
            config["no_rope_layers"] = turns;
          }};
}

ConfigPart gemma(std::optional<double> score_cap, double logit_cap) {
  const auto read = [=](const ConfigReader& r, ModelSpec& m) {
    const double scalar = r.number("query_pre_attn_scalar", 256);
    if (!(scalar > 0)) r.refuse("query_pre_attn_scalar is {}, not above 0", scalar);
    m.layer.score_scale = scalar == double(m.head_dim()) ? 0 : 1 / std::sqrt(scalar);
    const auto cap = [&](const char* key, double absent) {
      return r.number(key, r.mentions(key) ? 0 : absent);
    };
    m.layer.score_cap = cap("attn_logit_softcapping", score_cap.value_or(0));
    if (!score_cap && m.layer.score_cap != 0)
      r.refuse("attn_logit_softcapping is {}; transformers do not use it in this family", m.layer.score_cap);
    m.logit_cap = cap("final_logit_softcapping", logit_cap);
  };
  const auto write = [](const ModelSpec& m, OrderedJson& config) {
    config["query_pre_attn_scalar"] = query_scalar(m);
    const auto cap = [](double c) { return c > 0 ? OrderedJson(c) : OrderedJson(); };
    config["attn_logit_softcapping"] = cap(m.layer.score_cap);
    config["final_logit_softcapping"] = cap(m.logit_cap);
  };
  return {{"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"}, read, write};
}

}  // namespace trainctl::config_parts
