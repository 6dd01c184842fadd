// The generator: known answers, and permutations that are permutations.
#include <doctest/doctest.h>

#include <vector>

#include "random/permutation.h"
#include "random/philox.h"

namespace outcrop::random {
namespace {

TEST_CASE("Philox4x32-10 gives the known answers of its authors") {
  CHECK(Philox(0, {0, 0, 0, 0}) == Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(Philox(~uint64_t{0}, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}) ==
        Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(Philox(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}) ==
        Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("draws of different items, draws and purposes differ") {
  const Block one = Draw(7, Purpose::kFeature, 5, 3);
  CHECK(one == Draw(7, Purpose::kFeature, 5, 3));
  CHECK(one != Draw(8, Purpose::kFeature, 5, 3));
  CHECK(one != Draw(7, Purpose::kLabel, 5, 3));
  CHECK(one != Draw(7, Purpose::kFeature, 5 + (uint64_t{1} << 32), 3));
  CHECK(one != Draw(7, Purpose::kFeature, 5, 4));
}

TEST_CASE("numbers below a bound are below it and even") {
  std::vector<int> counts(7, 0);
  for (uint64_t item = 0; item < 70000; ++item) {
    ++counts[Below(Low64(Draw(1, Purpose::kLabel, item)), 7)];
  }
  for (int count : counts) CHECK(count == doctest::Approx(10000).epsilon(0.05));
}

TEST_CASE("a permutation hits everything once, and its inverse leads back") {
  for (uint64_t size : {1, 2, 3, 7, 64, 1000, 65537}) {
    const Permutation<> permutation(size, 9, Purpose::kRelabel);
    std::vector<bool> hit(size, false);
    for (uint64_t item = 0; item < size; ++item) {
      const uint64_t image = permutation(item);
      REQUIRE(image < size);
      REQUIRE(!hit[image]);
      hit[image] = true;
      REQUIRE(permutation.Inverse(image) == item);
    }
  }
}

}  // namespace
}  // namespace outcrop::random
