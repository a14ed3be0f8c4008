// Package abort stops running requests: the set of what runs here with its
// cancels, by id and attempt; the bounded set of ids known to be aborted, so that a
// later delivery of one is dropped; and the message by which an abort reaches every
// node, with who hears it and tells it on.
package abort
