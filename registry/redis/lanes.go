package redis

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"penstock/lane"
	"penstock/registry"
)

const (
	watchEvery = 2 * time.Second
	// announced is how many announcements a watcher may be behind; then it reads anew.
	announced = 256
	// knownMost bounds the lanes remembered as confirmed, 22 B each; then all are asked for again.
	knownMost = 100_000
	// maxKey bounds the text of a lane's key in bytes: the gateway takes tenant names
	// from API keys and models from the directory, both far shorter.
	maxKey = 4096
	// restMost bounds the rest after telling very many lanes.
	restMost = 250 * time.Millisecond
	// confirmAtOnce bounds one script.
	confirmAtOnce = 500
)

// keyText is a lane.Key in the directory. Bytes that are no UTF-8 would not survive
// JSON, so tenants are []byte.
type keyText struct {
	Tier, Type, Model, Pool string
	Tenant                  []byte
}

// listed is a lane's id in Redis's keys, 22 characters whatever its key holds, and the
// key's text: an entry of the directory is "<width> <key>".
func listed(k lane.Key) (id, key string, err error) {
	h := sha256.New()
	size := 0
	for _, part := range [...]string{k.Tier, k.Type, k.Model, k.Pool, k.Tenant} {
		size += len(part)
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		h.Write(length[:])
		h.Write([]byte(part))
	}
	if size > maxKey {
		return "", "", fmt.Errorf("registry/redis: a lane's key has %d bytes, at most %d", size, maxKey)
	}
	text, err := json.Marshal(keyText{k.Tier, k.Type, k.Model, k.Pool, []byte(k.Tenant)})
	if err != nil {
		return "", "", fmt.Errorf("registry/redis: lane entry: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:16]), string(text), nil
}

func parseEntry(entry string) (registry.Lane, error) {
	width, text, _ := strings.Cut(entry, " ")
	var k keyText
	err := json.Unmarshal([]byte(text), &k)
	n, bad := strconv.Atoi(width)
	if err = errors.Join(err, bad); err != nil {
		return registry.Lane{}, fmt.Errorf("registry/redis: lane entry %.200q: %w", entry, err)
	}
	return registry.Lane{Key: lane.Key{Tier: k.Tier, Type: k.Type, Model: k.Model, Pool: k.Pool, Tenant: string(k.Tenant)}, Width: n}, nil
}

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
	l, err := parseEntry(entry)
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
	id, _, _ := listed(l.Key)
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
	row, err := answered(answer, err, 2)
	if err != nil {
		return l, err
	}
	l = listing{version: row.text(0), waiting: map[string]struct{}{}}
	n := min(2+row.int(1), len(row.values))
	for i := 2; i < n; i++ {
		l.waiting[row.text(i)] = struct{}{}
	}
	for i := n; i < len(row.values); i++ {
		l.entries = append(l.entries, row.text(i))
	}
	return l, row.err
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
		_, text, _ := listed(key)
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

// Confirm says that node has subscribed to lanes; who waits in Open for one goes on.
// Lanes said before are not said again while the directory has them.
func (r *Registry) Confirm(ctx context.Context, node string, lanes []lane.Key) error {
	var news []lane.Key
	r.mu.Lock()
	for _, k := range lanes {
		if r.said[k] != node {
			news = append(news, k)
		}
	}
	r.mu.Unlock()
	for part := range slices.Chunk(news, confirmAtOnce) {
		args := []any{node}
		for _, k := range part {
			id, _, err := listed(k)
			if err != nil {
				return err
			}
			args = append(args, id)
		}
		if _, err := r.run(ctx, "confirm", 0, args...); err != nil {
			return err
		}
		r.mu.Lock()
		for _, k := range part {
			r.said[k] = node
		}
		r.mu.Unlock()
	}
	return nil
}

// unsay makes lanes be confirmed anew that are new in the directory; all without keys,
// which is also the bound of what is remembered.
func (r *Registry) unsay(keys ...lane.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(keys) == 0 || len(r.said) > knownMost {
		clear(r.said)
	}
	for _, k := range keys {
		delete(r.said, k)
	}
}

// await begins to wait for a lane's confirmation; nil: none is needed. forget ends it.
func (r *Registry) await(id string) (confirmed <-chan struct{}, forget func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.known[id]; known || r.cfg.ConfirmWait <= 0 {
		return nil, func() {}
	}
	c := make(chan struct{})
	if r.waiters[id] == nil {
		r.waiters[id] = map[chan struct{}]struct{}{}
	}
	r.waiters[id][c] = struct{}{}
	return c, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if delete(r.waiters[id], c); len(r.waiters[id]) == 0 {
			delete(r.waiters, id)
		}
	}
}

func (r *Registry) confirmed(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= knownMost {
		clear(r.known)
	}
	r.known[id] = struct{}{}
	for c := range r.waiters[id] {
		close(c)
	}
	delete(r.waiters, id)
}

// listen takes what Redis publishes, on a connection of its own, until ctx ends.
func (r *Registry) listen(ctx context.Context) {
	for {
		r.subscribed(ctx)
		if !sleep(ctx, probeEvery) {
			return
		}
	}
}

// subscribed listens until the connection fails. Nothing said while it was away is
// heard: lanes are read anew, cancels reach owners with their next renewal.
func (r *Registry) subscribed(ctx context.Context) {
	p := r.cfg.Prefix
	sub := r.client.Subscribe(ctx, p+"cancels", p+"lanes", p+"confirms")
	defer func() { _ = sub.Close() }()
	defer context.AfterFunc(ctx, func() { _ = sub.Close() })()
	for quiet := 0; ctx.Err() == nil; {
		got, err := sub.ReceiveTimeout(ctx, watchEvery)
		if kindOf(err) == failedTimeout && quiet == 0 {
			quiet++ // idle or dead: a ping tells
			err = sub.Ping(ctx)
			if err == nil {
				continue
			}
		}
		if err != nil {
			return
		}
		quiet = 0
		switch m := got.(type) {
		case *goredis.Subscription:
			r.announce("")
		case *goredis.Message:
			r.heard(strings.TrimPrefix(m.Channel, p), m.Payload)
		}
	}
}

func (r *Registry) heard(channel, text string) {
	switch channel {
	case "cancels":
		if parts := strings.Split(text, "\n"); len(parts) == 3 {
			r.cfg.Cancel(parts[0], parts[1], parts[2])
		}
	case "lanes":
		r.announce(text)
	case "confirms":
		r.confirmed(text)
	}
}

// announce tells all watchers; one that is behind reads anew at its next tick.
func (r *Registry) announce(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.watchers {
		select {
		case c <- text:
		default:
		}
	}
}
