package scraper

import "errors"

// Problem says why a page gave no sample. Its String is the metric label and does
// not change once released.
type Problem uint8

// The problems.
const (
	Unreachable Problem = iota + 1 // no connection, or it broke
	Timeout                        // not whole within Config.Timeout
	Status                         // not a 200; redirects are not followed
	TooLarge                       // more than Config.MaxPage bytes, or more than 64 engines
	Empty                          // a 200 without content
	Truncated                      // the end of the page is missing
	Garbage                        // not a metrics page, or a line we need is malformed
	Missing                        // a required name is not there
	NotFinite                      // NaN or infinite
	OutOfRange                     // negative, or above what the value can be
	Disagrees                      // the check's parser reads another value; samples go on
	problemEnd
)

var problems = [problemEnd]string{
	"unknown", "unreachable", "timeout", "http_status", "too_large", "empty", "truncated",
	"garbage", "missing_name", "not_finite", "out_of_range", "disagrees",
}

// String is the stable name, "unknown" for a value that is none.
func (p Problem) String() string {
	if p >= problemEnd {
		p = 0
	}
	return problems[p]
}

// Error is why there is no sample.
type Error struct {
	Problem Problem
	Name    string // the metric it is about, if it is about one
	Err     error
}

func (e *Error) Error() string {
	text := "scrape: " + e.Problem.String()
	if e.Name != "" {
		text += " " + e.Name
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *Error) Unwrap() error { return e.Err }

func problem(p Problem, name, text string) *Error {
	return &Error{Problem: p, Name: name, Err: errors.New(text)}
}

// asError finds the Error in err; one that carries none comes from the network.
func asError(err error) *Error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e
	}
	return &Error{Problem: Unreachable, Err: err}
}
