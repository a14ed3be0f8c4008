package redisconn

import (
	"context"
	"errors"
	"net"
	"strings"
)

// Fix is what to do about an error of Redis, by penstock's flags; "" = nothing is
// known. The texts are Redis's, crypto/tls's and the network's.
func Fix(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	if t := (told{}); errors.As(err, &t) {
		err = t.error
	}
	said := func(part string) bool { return strings.Contains(text, part) }
	var timeout net.Error
	switch {
	case said("WRONGPASS"), said("NOAUTH"), said("unauthenticated"):
		return "give the user in --redis (redis://USER@HOST:PORT) and its password with --redis-password-file"
	case said("NOPERM"), said("The user executing the script"):
		return "give the user of --redis ~PREFIX* &PREFIX* +@read +@write +@scripting +@pubsub +@connection +@transaction -@dangerous +info +time"
	case said("x509:"):
		return "name the issuer of Redis's certificate with --redis-ca-file FILE, and give --redis an address that the certificate names"
	case said("first record does not look like a TLS handshake"):
		return "the port speaks no TLS: give --redis redis://, not rediss://"
	case said("EOF"), said("connection reset"), said("broken pipe"):
		return "Redis hangs up: if the port speaks TLS, give --redis rediss://HOST:PORT; if it asks for a user, --redis-password-file as well"
	case said("READONLY"):
		return "give --redis the address of the primary, not of a replica"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "Redis does not answer in time: look at its load and at the way to it; a port without TLS is silent to rediss://"
	}
	return ""
}

// WithFix is err's text and what to do about it.
func WithFix(err error) string {
	if fix := Fix(err); fix != "" {
		return err.Error() + ": " + fix
	}
	return err.Error()
}
