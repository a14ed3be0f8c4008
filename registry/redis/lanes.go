package redis

import (
	"cmp"
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
	// confirmAtOnce bounds one script.
	confirmAtOnce = 500
)

// keyText is a lane.Key in the directory. Bytes that are no UTF-8 would not survive
// JSON, so tenants are []byte.
type keyText struct {
	Tier, Type, Model, Pool string
	Tenant                  []byte
}

// entry is a lane's id in Redis's keys and its entry in the directory. The id is 22
// characters whatever the key holds.
func (r *Registry) entry(k lane.Key) (id, entry string, err error) {
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
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:16]), strconv.Itoa(r.cfg.Width) + " " + string(text), nil
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
	w := watch{r: r, entries: map[string]struct{}{}}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for tell := w.read(ctx); ; {
		if tell {
			changed(w.lanes())
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
	version string // of entries, "<epoch>.<number>"; "" = never read
	stale   bool   // something was missed
	entries map[string]struct{}
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
	w.entries[entry] = struct{}{}
	return true
}

func parseVersion(v string) (epoch string, number int) {
	epoch, text, _ := strings.Cut(v, ".")
	number, _ = strconv.Atoi(text) // 0 follows nothing
	return epoch, number
}

// read fetches the directory where its version has changed; false: it could not.
func (w *watch) read(ctx context.Context) bool {
	known := w.version
	rows, err := w.list(ctx, known)
	if err == nil && len(w.entries) > 0 && rows[0] != known {
		was, _ := parseVersion(known)
		if is, _ := parseVersion(rows[0]); is != was {
			w.r.log.Warn("lane directory was lost, written again", "lanes", len(w.entries))
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
	if rows[0] == known {
		return true
	}
	w.version = rows[0]
	clear(w.entries)
	for _, entry := range rows[1:] {
		w.entries[entry] = struct{}{}
	}
	return true
}

// list answers the version, and the entries where it is not the known one.
func (w *watch) list(ctx context.Context, known string, more ...any) ([]string, error) {
	answer, err := w.r.run(ctx, "lanelist", 0, append([]any{known}, more...)...)
	row, err := answered(answer, err, 1)
	if err != nil {
		return nil, err
	}
	rows := make([]string, len(row.values))
	for i := range rows {
		rows[i] = row.text(i)
	}
	return rows, row.err
}

// restore writes what is known here, in parts, and reads all.
func (w *watch) restore(ctx context.Context) (rows []string, err error) {
	var part []any
	flush := func() {
		if err == nil {
			rows, err = w.list(ctx, "", part...)
			part = part[:0]
		}
	}
	for entry := range w.entries {
		l, bad := parseEntry(entry)
		if bad != nil {
			continue
		}
		id, _, _ := w.r.entry(l.Key)
		if part = append(part, id, entry); len(part) >= 2*confirmAtOnce {
			flush()
		}
	}
	flush()
	return rows, err
}

func (w *watch) lanes() []registry.Lane {
	list := make([]registry.Lane, 0, len(w.entries))
	for entry := range w.entries {
		l, err := parseEntry(entry)
		if err != nil {
			w.r.log.Debug("lane entry skipped", "error", err)
			continue
		}
		list = append(list, l)
	}
	slices.SortFunc(list, func(a, b registry.Lane) int {
		x, y := a.Key, b.Key
		return cmp.Or(cmp.Compare(x.Tier, y.Tier), cmp.Compare(x.Type, y.Type), cmp.Compare(x.Model, y.Model),
			cmp.Compare(x.Pool, y.Pool), cmp.Compare(x.Tenant, y.Tenant), cmp.Compare(b.Width, a.Width))
	})
	// A lane made wider is there with both widths until the next full read.
	return slices.CompactFunc(list, func(a, b registry.Lane) bool { return a.Key == b.Key })
}

// Confirm says that node has subscribed to lanes; who waits in Open for one goes on.
func (r *Registry) Confirm(ctx context.Context, node string, lanes []lane.Key) error {
	for part := range slices.Chunk(lanes, confirmAtOnce) {
		args := []any{node}
		for _, k := range part {
			id, _, err := r.entry(k)
			if err != nil {
				return err
			}
			args = append(args, id)
		}
		if _, err := r.run(ctx, "confirm", 0, args...); err != nil {
			return err
		}
	}
	return nil
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
