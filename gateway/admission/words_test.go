package admission

import (
	"fmt"
	"testing"
	"time"

	"penstock/fleet"
	"penstock/gateway/directory"
	"penstock/reason"
)

// TestWaterWithoutRows: the law "watermark" refuses half while no row counts.
func TestWaterWithoutRows(t *testing.T) {
	d := directory.New(nil, func() []fleet.Row { return nil }, nil)
	refused := 0
	for i := range 1000 {
		if f := water(d, "q", "", fmt.Sprint(i), time.Unix(1000, 0)); f != nil {
			refused++
			if text := f.Text(time.Second); text != "How full the engines for model 'q' are is not known. Please try again in 1 second." || f.Reason != reason.Overloaded {
				t.Fatalf("refused with %s, %q", f.Reason, text)
			}
		}
	}
	if refused < 450 || refused > 550 {
		t.Errorf("%d of 1000 are refused, want half", refused)
	}
}
