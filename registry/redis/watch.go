package redis

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"penstock/lane"
	"penstock/registry"
	"penstock/registry/redis/script"
)

// Watch calls changed with all lanes of the directory; announcements reach it through
// Run. A directory that Redis has lost is written again from what is known here.
func (r *Registry) Watch(ctx context.Context, changed func([]registry.Lane)) error {
	news := make(chan string, announced)
	r.mu.Lock()
	r.watchers[news] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.watchers, news)
		r.mu.Unlock()
	}()
	w := watch{r: r, lanes: map[lane.Key]*place{}}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for tell := w.read(ctx); ; {
		if tell {
			began := time.Now()
			changed(w.all())
			sleep(ctx, min(3*time.Since(began), restMost)) // announcements of one by one are told together
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			tell = w.read(ctx)
		case text := <-news:
			tell = w.take(text)
			for more := len(news); more > 0; more-- {
				tell = w.take(<-news) || tell
			}
			if w.stale {
				tell = w.read(ctx)
			}
		}
	}
}

// watch is a copy of the lane directory.
type watch struct {
	r       *Registry
	version string // of lanes, "<epoch>.<number>"; "" = never read
	stale   bool   // something was missed
	lanes   map[lane.Key]*place
	known   map[lane.Key]*place // while all are read: those of before
}

// place is a lane of the directory.
type place struct {
	id      string
	width   int
	waiting bool
}

// add takes an entry over; a lane that was made wider may come with both widths. A lane
// that was not there has to be confirmed.
func (w *watch) add(entry string) {
	l, err := script.ParseLane(entry)
	if err != nil {
		w.r.log.Debug("lane entry skipped", "error", err)
		return
	}
	switch old := w.lanes[l.Key]; {
	case l.Width == 0: // it goes
		delete(w.lanes, l.Key)
		return
	case old != nil:
		old.width = max(old.width, l.Width)
		return
	}
	id, _, _ := script.Lane(l.Key)
	w.lanes[l.Key] = &place{id: id, width: l.Width}
	if w.known[l.Key] == nil {
		w.r.unsay(l.Key)
	}
}

func (w *watch) all() []registry.Lane {
	list := make([]registry.Lane, 0, len(w.lanes))
	for key, at := range w.lanes {
		list = append(list, registry.Lane{Key: key, Width: at.width, Waiting: at.waiting})
	}
	return list
}

// take applies one announcement, if it follows what is known; false: nothing new.
func (w *watch) take(text string) bool {
	version, entry, _ := strings.Cut(text, " ")
	epoch, number := parseVersion(version)
	knownEpoch, known := parseVersion(w.version)
	switch {
	case w.stale, epoch != knownEpoch, number > known+1:
		w.stale = true
		return false
	case number <= known:
		return false
	}
	w.version = version
	w.add(entry)
	return true
}

func parseVersion(v string) (epoch string, number int) {
	epoch, text, _ := strings.Cut(v, ".")
	number, _ = strconv.Atoi(text) // 0 follows nothing
	return epoch, number
}

// read fetches what waits, and the directory where its version has changed; false: it
// could not.
func (w *watch) read(ctx context.Context) bool {
	known := w.version
	rows, err := w.list(ctx, known)
	if err == nil && len(w.lanes) > 0 && rows.version != known {
		was, _ := parseVersion(known)
		if is, _ := parseVersion(rows.version); is != was {
			w.r.log.Warn("lane directory was lost, written again", "lanes", len(w.lanes))
			w.r.unsay()
			rows, err = w.restore(ctx)
		}
	}
	if err != nil {
		w.stale = true
		if !errors.Is(err, registry.ErrAway) && ctx.Err() == nil {
			w.r.log.Error("lane directory not read", "error", err)
		}
		return false
	}
	w.stale = false
	if rows.version != known {
		w.version = rows.version
		w.lanes, w.known = make(map[lane.Key]*place, len(rows.entries)), w.lanes
		for _, entry := range rows.entries {
			w.add(entry)
		}
		w.known = nil
	}
	for _, at := range w.lanes {
		_, at.waiting = rows.waiting[at.id]
	}
	return true
}

// listing is an answer of lanelist.lua.
type listing struct {
	version string
	waiting map[string]struct{}
	entries []string
}

// list answers the version, what waits, and the entries where it is not the known one.
func (w *watch) list(ctx context.Context, known string, more ...any) (l listing, err error) {
	answer, err := w.r.run(ctx, "lanelist", 0, append([]any{known}, more...)...)
	row, err := script.Read(answer, err, 2)
	if err != nil {
		return l, err
	}
	l = listing{version: row.Text(0), waiting: map[string]struct{}{}}
	n := min(2+row.Int(1), row.Len())
	for i := 2; i < n; i++ {
		l.waiting[row.Text(i)] = struct{}{}
	}
	for i := n; i < row.Len(); i++ {
		l.entries = append(l.entries, row.Text(i))
	}
	return l, row.Err()
}

// restore writes what is known here, in parts, and reads all.
func (w *watch) restore(ctx context.Context) (rows listing, err error) {
	var part []any
	flush := func() {
		if err == nil {
			_, err = w.list(ctx, "any", part...)
			part = part[:0]
		}
	}
	for key, at := range w.lanes {
		_, text, _ := script.Lane(key)
		if part = append(part, at.id, strconv.Itoa(at.width)+" "+text); len(part) >= 2*confirmAtOnce {
			flush()
		}
	}
	flush()
	if err != nil {
		return rows, err
	}
	return w.list(ctx, "")
}
