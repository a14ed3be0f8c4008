// Package random draws the numbers of a simulation: each hangs on a seed and an index
// alone, so that nothing that is drawn elsewhere changes it.
package random

// Mix spreads two numbers over 64 bits (splitmix64's finaliser).
func Mix(a, n uint64) uint64 {
	x := a + (n+1)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Fraction is a number in 0..1, without 1, from a hash.
func Fraction(h uint64) float64 { return float64(h>>11) / (1 << 53) }
