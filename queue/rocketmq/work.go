package rocketmq

import (
	"sync"
	"time"
)

// work is which LiteTopics the handlers of one client are at.
type work struct {
	mu      sync.Mutex     // guards below
	running map[string]int // handlers by topic
	moved   map[string]time.Time
}

func newWork() *work { return &work{running: map[string]int{}, moved: map[string]time.Time{}} }

// begin notes that a handler gets a delivery of topic.
func (w *work) begin(topic string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[topic]++
}

// finish notes that it has answered and that the next delivery is due at due.
func (w *work) finish(topic string, due time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running[topic]--; w.running[topic] == 0 {
		delete(w.running, topic)
	}
	w.moved[topic] = due
}

// takeMoved returns the topics that had an answer since the last call, and when the
// next delivery of each is due.
func (w *work) takeMoved() map[string]time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.moved) == 0 {
		return nil
	}
	moved := w.moved
	w.moved = map[string]time.Time{}
	return moved
}

// runs reports whether a handler has a delivery of topic.
func (w *work) runs(topic string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running[topic] > 0
}
