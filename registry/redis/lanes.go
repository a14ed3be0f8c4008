package redis

import (
	"context"
	"slices"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"penstock/lane"
	"penstock/registry"
	"penstock/registry/redis/script"
)

const (
	watchEvery = 2 * time.Second
	// announced is how many announcements a watcher may be behind; then it reads anew.
	announced = 256
	// knownMost bounds the lanes remembered as confirmed, 22 B each, and those this process
	// has confirmed, 120 B each; then all are asked for, or said, again.
	knownMost = 100_000
	// restMost bounds the rest after telling very many lanes.
	restMost = 250 * time.Millisecond
	// confirmAtOnce bounds one script.
	confirmAtOnce = 500
)

// bounds are a lane's, at most the store's.
func (r *Registry) bounds(k lane.Key) registry.Bounds {
	b := r.cfg.Bounds(k)
	if b.Requests <= 0 || b.Requests > r.cfg.LaneRequests {
		b.Requests = r.cfg.LaneRequests
	}
	if b.Bytes <= 0 || b.Bytes > r.cfg.LaneBytes {
		b.Bytes = r.cfg.LaneBytes
	}
	if b.Width <= 0 || b.Width > r.cfg.Width {
		b.Width = r.cfg.Width
	}
	return b
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
			id, _, err := script.Lane(k)
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
