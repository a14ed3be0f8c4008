package forecast

import (
	"testing"
	"time"
)

// The slope follows long prompts through a crowd of short ones, and a hiccup of
// the engine neither closes the TTFT line nor slows it for long.
func TestSpeed(t *testing.T) {
	const rate = 20_000
	took := func(tokens int) time.Duration {
		return 15*time.Millisecond + time.Duration(tokens)*time.Second/rate
	}
	var v Speed
	for _, tokens := range []int{100, 4000, 2000} {
		if v.Known() {
			t.Error("known before three first tokens")
		}
		v.Learn(tokens, took(tokens))
	}
	for range 100 {
		v.Learn(50, took(50))
	}
	if got := v.Rate(); got < 0.8*rate || got > 1.2*rate {
		t.Errorf("rate is %.0f tokens/s, want about %d", got, rate)
	}
	v.Learn(4000, 30*time.Second)
	if got := v.Predict(1000); got > time.Second {
		t.Errorf("after one hiccup 1,000 tokens are predicted to take %s", got)
	}
	for range 200 {
		v.Learn(1000, took(1000))
	}
	if got, want := v.Predict(1000), took(1000); got < want*9/10 || got > want*2 {
		t.Errorf("1,000 tokens are predicted to take %s, want about %s", got, want)
	}
	if got, want := v.Mean(), took(1000); got < want*9/10 || got > want*2 {
		t.Errorf("the row's first token is %s, want about %s", got, want)
	}
}
