package gateway

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
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
	synctest.Test(t, func(t *testing.T) {
		from := &slowDirectory{}
		d := directory{from: from}
		for round, pause := range []time.Duration{0, 11 * time.Second, 2 * time.Second} {
			time.Sleep(pause)
			began := time.Now()
			var all sync.WaitGroup
			for range 10 {
				all.Go(func() {
					r, err := d.read(t.Context(), directoryAge)
					if err != nil || time.Since(r.at) > directoryBusy {
						t.Errorf("round %d: a reading of %v, %v", round, time.Since(r.at), err)
					}
				})
			}
			all.Wait()
			if took := time.Since(began); from.calls != round+1 || took != 10*time.Millisecond {
				t.Errorf("round %d: %d calls after %v, want %d after 10ms", round, from.calls, took, round+1)
			}
		}
	})
}
