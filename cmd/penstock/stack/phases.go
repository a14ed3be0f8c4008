package stack

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// part runs until its context ends.
type part func(context.Context) error

// inOrder runs all parts at once and ends them phase by phase: ctx ends the first
// phase, and each later one ends when all parts of the one before have returned. A
// part that returns early takes everything down in the same order. It returns the
// first error.
func inOrder(ctx context.Context, phases ...[]part) error {
	first, stop := context.WithCancel(ctx)
	defer stop()
	var all errgroup.Group
	current := first
	for _, parts := range phases {
		next, stopNext := context.WithCancel(context.WithoutCancel(ctx))
		defer stopNext()
		mine := current
		var group errgroup.Group
		for _, run := range parts {
			group.Go(func() error { defer stop(); return run(mine) })
		}
		all.Go(func() error { defer stopNext(); return group.Wait() })
		current = next
	}
	return all.Wait()
}
