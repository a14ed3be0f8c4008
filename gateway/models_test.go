package gateway

import (
	"context"
	"sync"
	"testing"
	"time"

	"penstock/registry"
)

type slowDirectory struct {
	registry.Directory
	calls int
}

func (d *slowDirectory) Engines(context.Context) ([]registry.Engine, error) {
	d.calls++ // one at a time
	time.Sleep(10 * time.Millisecond)
	return []registry.Engine{{Models: []string{"q"}, Seen: time.Now()}}, nil
}

// After a pause everybody waits for the one new reading: the engines of the old one
// would all count as gone.
func TestDirectoryAfterPause(t *testing.T) {
	from := &slowDirectory{}
	d := directory{from: from}
	d.last.Store(&reading{at: time.Now().Add(-11 * time.Second)})
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			r, err := d.read(t.Context(), directoryAge)
			if err != nil || time.Since(r.at) > directoryBusy {
				t.Errorf("a reading of %v ago, %v", time.Since(r.at), err)
			}
		})
	}
	all.Wait()
	if from.calls != 1 {
		t.Errorf("%d calls, want 1 for all", from.calls)
	}
}
