// Curves in one line of text, of block characters. Pure.
#pragma once
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace trainctl {

/// The smallest and the largest finite value; {NaN, NaN} if there is none.
std::pair<double, double> range_of(std::span<const double> values);

/// One character for each value, from ▁ (`low` and below) to █ (`high` and above); a blank for one that is
/// not finite. Where low == high every value is in the middle.
std::string sparkline(std::span<const double> values, double low, double high);

/// `values` as at most `width` values: the mean of the finite ones of each stretch.
std::vector<double> shortened(std::span<const double> values, size_t width);

/// A bar of `width` characters of which `share` (0 to 1) is filled, in eighths of a character.
std::string bar(double share, int width);

}  // namespace trainctl
