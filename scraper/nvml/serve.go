package nvml

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"penstock/scraper/nvml/wire"
)

// The bounds on a helper. It writes a line every 500 ms whatever the library does.
const (
	firstLine   = 10 * time.Second // from exec, on a busy machine
	silence     = 3 * time.Second
	checkEvery  = time.Second
	byItself    = time.Second            // a helper that is told to end has so long to release its devices
	reapWithin  = 500 * time.Millisecond // a killed one is then given up
	maxLeft     = 3                      // helpers that the kernel cannot end; no further one is started
	lookAgain   = time.Minute            // a lost GPU is looked for anew, with a new helper
	initPause   = 5 * time.Second        // at least, after the library could not be used
	logXIDEvery = 10 * time.Second       // per GPU and code
)

// cause is why a helper ended. Its String is the metric label.
type cause uint8

const (
	missing    cause = iota + 1 // there is none, or it cannot be run
	exited                      // by itself, or by somebody's signal
	hung                        // a call did not return
	silent                      // no line
	garbage                     // a line that is none
	fat                         // RSSCap
	unusable                    // the library could not be used, or no GPU answers any more
	unbound                     // a driver leaves a GPU
	lostRetry                   // a lost GPU is looked for anew
	unkillable                  // too many helpers are left that the kernel cannot end
	causeEnd
)

var causes = [causeEnd]string{
	"unknown", "missing", "exited", "hung", "silent", "garbage", "memory", "unusable", "unbound", "gpu_lost", "unkillable",
}

// least is the shortest pause before the next helper.
func (c cause) least() time.Duration {
	switch c {
	case missing, unbound, unkillable: // after unbound: devices stay free for whoever replaces the driver
		return MaxBackoff
	case unusable:
		return initPause
	}
	return 0
}

// serve runs one helper to its end and says why it ended.
func (r *Reader) serve(ctx context.Context) cause {
	r.left = slices.DeleteFunc(r.left, func(exited <-chan struct{}) bool {
		select {
		case <-exited:
			return true
		default:
			return false
		}
	})
	if len(r.left) >= maxLeft {
		r.gone(Stuck, fmt.Sprintf("%d helpers hang in the driver and cannot be ended", len(r.left)))
		return unkillable
	}
	c, err := r.start()
	if err != nil {
		r.gone(Absent, err.Error())
		return missing
	}
	why := r.follow(ctx, c)
	if !c.end(ctx.Err() != nil) {
		r.left = append(r.left, c.exited)
	}
	return why
}

// follow reads c until there is a reason to end it.
func (r *Reader) follow(ctx context.Context, c *child) cause {
	began := time.Now()
	quiet := time.NewTimer(firstLine)
	defer quiet.Stop()
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	widened := 0
	for {
		select {
		case <-ctx.Done():
			return exited
		case <-r.fresh:
			r.recovered()
		case l := <-c.lines:
			quiet.Reset(silence)
			if why := r.take(&l, &widened); why != 0 {
				return why
			}
		case err := <-c.broken:
			if errors.Is(err, io.EOF) {
				r.gone(Absent, "helper ended: "+c.last())
				return exited
			}
			r.gone(Absent, "helper: "+err.Error())
			return garbage
		case <-quiet.C:
			r.gone(Stuck, "helper is silent")
			return silent
		case now := <-check.C:
			if rss := c.rss(); rss > r.cfg.RSSCap {
				r.gone(Absent, fmt.Sprintf("helper uses %d bytes, above the cap of %d", rss, r.cfg.RSSCap))
				return fat
			}
			if r.view.last.State == Lost && now.Sub(began) >= lookAgain {
				return lostRetry
			}
		}
	}
}

// take handles one line; 0 means that the helper goes on.
func (r *Reader) take(l *wire.Line, widened *int) cause {
	now := time.Now()
	for _, x := range r.view.line(now, l) {
		r.xid(now, x)
	}
	if len(l.Missing) > 0 {
		r.log.Info("the driver's library lacks functions; what they say is left out", "missing", l.Missing, "driver", l.Driver)
	}
	if l.Widened > *widened {
		r.log.Warn("the driver's calls are slow; it is asked less often", "every", l.Every)
		r.metrics.widened.Add(float64(l.Widened - *widened))
		*widened = l.Widened
	}
	if l.Every > 0 || l.End != "" {
		r.tell()
	}
	switch l.End {
	case "":
		return 0
	case wire.EndHang:
		return hung
	case wire.EndUnbind:
		return unbound
	}
	return unusable
}

func (r *Reader) xid(now time.Time, x seen) {
	kind := lookup(x.code)
	r.metrics.xid(x.gpu, kind.class)
	if last, ok := r.quiet[x]; ok && now.Sub(last) < logXIDEvery {
		return
	}
	if len(r.quiet) >= 1000 { // a bound; codes are few
		clear(r.quiet)
	}
	r.quiet[x] = now
	r.log.Warn("xid", "gpu", x.gpu, "xid", x.code, "class", kind.class.String(), "meaning", kind.text)
}
