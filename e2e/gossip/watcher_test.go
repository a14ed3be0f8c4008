//go:build e2e

package gossip

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/abort"
	rows "penstock/fleet"
	"penstock/gossip"
)

// watcher is this process as a member of the fleet. It hears every row, aborts what
// never ran, and lies on demand.
type watcher struct {
	gossip *gossip.Gossip
	router *abort.Router
	keys   abort.Keys

	mu     sync.Mutex // guards all below
	lie    []byte     // a table it tells of in exchanges of state; nil = none
	latest map[uint64]rows.Row
	heard  map[version][sha256.Size]byte
	wrong  []string
	direct int // rows that came from their owner
	tables int // that came in exchanges of state
}

type version struct{ engine, incarnation, seq uint64 }

const watcherKeys = "watcher.keys"

func newWatcher() (*watcher, error) {
	secret, err := base64.StdEncoding.DecodeString(first)
	if err != nil {
		return nil, err
	}
	w := &watcher{router: abort.NewRouter("watcher"), latest: map[uint64]rows.Row{}, heard: map[version][sha256.Size]byte{}}
	if w.keys, err = abort.NewKeys(secret); err != nil {
		return nil, err
	}
	cfg := gossip.DefaultConfig()
	cfg.Name, cfg.Label, cfg.KeyFile, cfg.Join = "watcher", "penstock", filepath.Join(home, watcherKeys), []string{address(1) + ":4783"}
	if err := w.setKeys(first); err != nil {
		return nil, err
	}
	if w.gossip, err = gossip.New(cfg, w, func(msg []byte) { w.take(msg, true) }, slog.New(slog.DiscardHandler), prometheus.NewRegistry()); err != nil {
		return nil, err
	}
	l, err := gossip.Listen(address(254) + ":0")
	if err != nil {
		return nil, err
	}
	go func() { _ = w.gossip.Run(context.Background(), l) }() // until the process ends
	return w, nil
}

func (w *watcher) setKeys(keys ...string) error {
	text := ""
	for _, key := range keys {
		text += key + "\n"
	}
	if err := os.WriteFile(filepath.Join(home, watcherKeys), []byte(text), 0o600); err != nil {
		return err
	}
	if w.gossip == nil {
		return nil
	}
	return w.gossip.Reload()
}

// take notes a row. One version of a row has one content, whoever tells it.
func (w *watcher) take(msg []byte, direct bool) {
	r, err := rows.ParseRow(msg, time.Now())
	if err != nil {
		return // an abort
	}
	const age = 26 // its four bytes differ from copy to copy
	binary.BigEndian.PutUint32(msg[age:], 0)
	v, sum := version{r.Engine, r.Incarnation, r.Seq}, sha256.Sum256(msg)
	w.mu.Lock()
	defer w.mu.Unlock()
	if direct {
		w.direct++
	}
	if known, ok := w.heard[v]; ok && known != sum {
		w.wrong = append(w.wrong, fmt.Sprintf("two contents of one version: %s, incarnation %d, seq %d", r.Node, r.Incarnation, r.Seq))
	}
	w.heard[v] = sum
	if rows.ID(r.Node) != r.Engine {
		w.wrong = append(w.wrong, fmt.Sprintf("%s speaks of engine %x, its own is %x", r.Node, r.Engine, rows.ID(r.Node)))
	}
	if last := w.latest[r.Engine]; last.Incarnation < r.Incarnation || last.Incarnation == r.Incarnation && last.Seq < r.Seq {
		w.latest[r.Engine] = r
	}
}

// complaints are what was wrong since the last call.
func (w *watcher) complaints() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	wrong := w.wrong
	w.wrong = nil
	return wrong[:min(len(wrong), 10)]
}

func (w *watcher) row(node string) rows.Row {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.latest[rows.ID(node)]
}

// MarshalBinary is the lie, framed as nodes frame their state.
func (w *watcher) MarshalBinary() ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lie == nil {
		return nil, nil
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(w.lie))), w.lie...), nil
}

// Merge notes the rows in another's state.
func (w *watcher) Merge(state []byte) error {
	for len(state) >= 4 {
		size := 4 + int(binary.BigEndian.Uint32(state))
		if size > len(state) {
			return fmt.Errorf("a frame of %d bytes in a state of %d", size, len(state))
		}
		frame := state[4:size]
		state = state[size:]
		if len(frame) < 2 || frame[0] != rows.KindTable {
			continue
		}
		w.mu.Lock()
		w.tables++
		w.mu.Unlock()
		for frame = frame[2:]; len(frame) > 0 && int(frame[0]) < len(frame); frame = frame[1+int(frame[0]):] {
			w.take(append([]byte(nil), frame[1:1+int(frame[0])]...), false)
		}
	}
	return nil
}

// abort tells all members by gossip alone that a request is over that never was.
func (w *watcher) abort(id string) error {
	m := w.router.Message(id, "", "")
	b, err := abort.Append(nil, &m, w.keys)
	if err != nil {
		return err
	}
	return w.gossip.Broadcast(b)
}
