package forecast

import "testing"

// Estimates that are four times too low are believed for one chunk's worth, and again
// soon after they have come right; those too high are left as they are.
func TestEstimates(t *testing.T) {
	e := NewEstimates()
	if got := e.Tokens(100); got != 100 {
		t.Errorf("before anything is counted 100 tokens are taken for %d", got)
	}
	for range 16 {
		e.Learn(100, 400)
	}
	if got := e.Tokens(100); got < 200 || got > 400 {
		t.Errorf("after 16 prompts of 400 tokens for 100 estimated, 100 are taken for %d, want 200 to 400", got)
	}
	for range 150 {
		e.Learn(400, 400)
	}
	if got := e.Tokens(400); got != 400 {
		t.Errorf("once estimates are right 400 tokens are taken for %d", got)
	}
	for range 100 {
		e.Learn(400, 100)
	}
	if got := e.Tokens(400); got != 400 {
		t.Errorf("where estimates are too high 400 tokens are taken for %d, want 400", got)
	}
	e.Learn(1, 1<<40)
	if got := e.Tokens(100); got != 800 {
		t.Errorf("after nonsense 100 tokens are taken for %d, want 8 times as much at most", got)
	}
}
