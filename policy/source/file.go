package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"penstock/policy"
)

// File is a policy in a file.
type File struct {
	Path string
	// Every is how often it is read; 0 = 2 s. It is at most policy.MaxBytes, and a
	// mounted configuration is replaced in ways that a watch misses.
	Every time.Duration
}

const fileEvery = 2 * time.Second

func (f File) String() string { return f.Path }

// Read reads the file.
func (f File) Read(context.Context) ([]byte, error) {
	file, err := os.Open(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return io.ReadAll(io.LimitReader(file, policy.MaxBytes+1)) // a longer one is refused by Parse
}

// Watch looks every now and then.
func (f File) Watch(ctx context.Context, look func()) {
	every := f.Every
	if every <= 0 {
		every = fileEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			look()
		case <-ctx.Done():
			return
		}
	}
}
