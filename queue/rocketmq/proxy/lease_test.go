package proxy

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		began := time.Now()
		l := newLease(func() error {
			at = append(at, time.Since(began))
			if len(at) == 3 {
				return errors.New("away")
			}
			return nil
		})
		time.Sleep(22 * time.Second)
		l.end()
		time.Sleep(time.Minute)
		want := []time.Duration{5 * time.Second, 10 * time.Second, 15 * time.Second, 16 * time.Second, 21 * time.Second}
		if !slices.Equal(at, want) {
			t.Errorf("renewed at %v, want %v", at, want)
		}
	})
}

func TestLeaseEndWaits(t *testing.T) {
	entered, leave, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	l := newLease(func() error { close(entered); <-leave; return nil })
	go l.fire()
	<-entered
	go func() { l.end(); close(ended) }()
	select {
	case <-ended:
		t.Error("end returned while a renewal ran")
	case <-time.After(20 * time.Millisecond):
	}
	close(leave)
	<-ended
}
