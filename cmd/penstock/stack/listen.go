package stack

import (
	"errors"
	"net"
	"syscall"

	"penstock/cmd/penstock/exit"
)

// listen opens an address; one that is in use names its flag.
func listen(flag, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, exit.Usagef("%s %s is in use by another process: choose another address with %s", flag, address, flag)
	case err != nil:
		return nil, exit.Usagef("%s %s: %w", flag, address, err)
	}
	return l, nil
}

type listenerFlag struct{ flag, address string }

// listenAll opens the addresses, all or none.
func listenAll(flags ...listenerFlag) (ls []net.Listener, err error) {
	for _, f := range flags {
		l, err := listen(f.flag, f.address)
		if err != nil {
			closeAll(ls)
			return nil, err
		}
		ls = append(ls, l)
	}
	return ls, nil
}

func closeAll(ls []net.Listener) {
	for _, l := range ls {
		_ = l.Close()
	}
}
