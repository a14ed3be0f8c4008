package random

import (
	"math"
	"testing"
)

// The first numbers of splitmix64 from seed 0, and the ends of the fractions.
func TestDrawn(t *testing.T) {
	for n, want := range []uint64{0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f} {
		if got := Mix(0, uint64(n)); got != want {
			t.Errorf("number %d is %#x, want %#x", n, got, want)
		}
	}
	if a, b := Fraction(0), Fraction(math.MaxUint64); a != 0 || b <= 0.999 || b >= 1 {
		t.Errorf("fractions from %g to %g, want from 0 to just below 1", a, b)
	}
}
