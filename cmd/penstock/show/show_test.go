package show

import (
	"testing"
)

func TestAgo(t *testing.T) {
	for seconds, want := range map[float64]string{0: "-", 0.0521: "52ms", 1.26: "1.3s", 12.4: "12s", 90: "1m30s"} {
		if got := Ago(seconds); got != want {
			t.Errorf("Ago(%v) = %q, want %q", seconds, got, want)
		}
	}
}
