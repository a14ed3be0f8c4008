package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"penstock/cmd/penstock/exit"
	"penstock/config"
	"penstock/gateway/direct"
	penstockv1 "penstock/proto/penstock/v1"
)

// callWithin bounds one call to an agent.
const callWithin = 5 * time.Second

// caller calls agents.
type caller struct{ grpc, cert, key, ca string }

func (c *caller) flags(f *pflag.FlagSet) {
	f.StringVar(&c.grpc, "grpc", "127.0.0.1:4781", "gRPC address of the agent or standalone to ask")
	f.StringVar(&c.ca, "ca", "", `PEM file with the authority of agents' certificates, "system" for the system's; without it the call is plain text`)
	f.StringVar(&c.cert, "cert", "", "PEM file with the client certificate that orders from another host need")
	f.StringVar(&c.key, "key", "", "PEM file with its key")
}

// load fills f from the environment.
func (c *caller) load(f *pflag.FlagSet) error {
	if _, err := config.Load(f, "", os.LookupEnv); err != nil {
		return exit.Usagef("%w", err)
	}
	return nil
}

// dial connects to address, at the first call.
func (c *caller) dial(address string) (penstockv1.AgentServiceClient, func(), error) {
	creds, err := c.credentials()
	if err != nil {
		return nil, nil, exit.Usagef("%w", err)
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(creds))
	if err != nil {
		return nil, nil, exit.Usagef("--grpc %q: %w", address, err)
	}
	return penstockv1.NewAgentServiceClient(conn), func() { _ = conn.Close() }, nil
}

func (c *caller) credentials() (credentials.TransportCredentials, error) {
	switch {
	case (c.cert == "") != (c.key == ""):
		return nil, fmt.Errorf("--cert %q and --key %q: give both or neither", c.cert, c.key)
	case c.ca == "" && c.cert != "":
		return nil, errors.New("--cert without --ca: say whose agents may see it")
	case c.ca == "":
		return insecure.NewCredentials(), nil
	}
	tlsConfig, err := direct.Files{CA: c.ca, Cert: c.cert, Key: c.key}.Config()
	if err != nil {
		return nil, fmt.Errorf("--ca, --cert, --key: %w", err)
	}
	return credentials.NewTLS(tlsConfig), nil
}

// explain turns the error of a call to address into words and an exit code.
func explain(address string, err error) error {
	switch s := status.Convert(err); s.Code() {
	case codes.OK:
		return nil
	case codes.Unavailable, codes.DeadlineExceeded:
		why := strings.Trim(s.Message(), `"`)
		for _, before := range []string{"desc = ", "dial tcp " + address + ": ", "transport: "} {
			if i := strings.LastIndex(why, before); i >= 0 {
				why = strings.Trim(why[i+len(before):], `"`)
			}
		}
		return exit.With(exit.Unreachable, fmt.Errorf("no agent answers at %s: %s. Name another with --grpc HOST:PORT", address, why))
	case codes.Unimplemented:
		return fmt.Errorf("%s speaks gRPC and is no penstock agent of this version: %s", address, s.Message())
	default:
		return errors.New(s.Message())
	}
}

// call makes one call to the agent that --grpc names.
func call[Q, A any](ctx context.Context, c *caller, do func(penstockv1.AgentServiceClient, context.Context, Q, ...grpc.CallOption) (A, error), q Q) (A, error) {
	var none A
	client, closeConn, err := c.dial(c.grpc)
	if err != nil {
		return none, err
	}
	defer closeConn()
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	a, err := do(client, ctx, q)
	return a, explain(c.grpc, err)
}
