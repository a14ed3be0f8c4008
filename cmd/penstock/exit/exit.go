// Package exit gives errors the exit code that a command ends with.
package exit

import (
	"errors"
	"fmt"
)

// Exit codes, listed in "penstock --help".
const (
	OK          = 0
	Failed      = 1
	Usage       = 2
	Unhealthy   = 3
	Unreachable = 4
)

// coded is an error with its exit code.
type coded struct {
	code int
	err  error
}

func (e *coded) Error() string { return e.err.Error() }
func (e *coded) Unwrap() error { return e.err }

// With is err with an exit code other than Failed, which every error has by itself.
func With(code int, err error) error { return &coded{code, err} }

// Usagef is an error of flags, arguments or configuration.
func Usagef(format string, args ...any) error {
	return With(Usage, fmt.Errorf(format, args...))
}

// Code is what a command that ends with err exits with; OK for nil.
func Code(err error) int {
	var c *coded
	switch {
	case err == nil:
		return OK
	case errors.As(err, &c):
		return c.code
	}
	return Failed
}
