// Package abort stops running requests: the set of what runs here with its
// cancels, by id and attempt, and the bounded set of ids known to be aborted, so
// that a later delivery of one is dropped.
package abort
