package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/flags"
	"penstock/config"
	"penstock/policy"
	"penstock/policy/source"
	"penstock/policy/source/nacos"
	policyredis "penstock/policy/source/redis"
	"penstock/redisconn"
)

// pushWithin bounds the reads and writes of a push, not the answer to its question.
const pushWithin = 10 * time.Second

// store is where a policy can be written.
type store interface {
	String() string
	Read(ctx context.Context) ([]byte, error)
	Replace(ctx context.Context, old, text []byte) error
	Close() error
}

func newPolicyPush() *cobra.Command {
	var p push
	var to, credentials string
	cmd := &cobra.Command{
		Use:   "push FILE",
		Short: "Write a policy to Redis or Nacos, for the whole fleet",
		Long: `push checks FILE, shows how it differs from the policy that lies there, asks, and writes it. Every gateway and agent
that goes by it takes it over at once; penstock status says who is behind. Where somebody has changed it meanwhile
nothing is written.`,
		Example: `  penstock policy push policy.yaml --redis redis:6379
  penstock policy push policy.yaml --redis redis:6379 --dry-run
  penstock policy push policy.yaml --to 'nacos://nacos:8848/penstock.yaml?group=llm' --policy-credentials-file nacos.txt --yes`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := config.Load(cmd.Flags(), "", os.LookupEnv); err != nil {
				return exit.Usagef("%w", err)
			}
			if _, err := flags.ParsePolicy(args[0]); err != nil {
				return err
			}
			redis := flags.Backends{}
			text := func(name string) string { v, _ := cmd.Flags().GetString(name); return v }
			if err := redis.ReadRedis(text("redis"), text("redis-password-file"), text("redis-ca-file")); err != nil {
				return exit.Usagef("%w", err)
			}
			at, err := openStore(to, credentials, redis.Policy)
			if err != nil {
				return err
			}
			defer func() { _ = at.Close() }()
			p.in, p.out = cmd.InOrStdin(), cmd.OutOrStdout()
			return p.run(cmd.Context(), args[0], at)
		},
	}
	f := cmd.Flags()
	f.StringVar(&to, "to", "redis:", "where to write: redis: is the key "+policyredis.DefaultKey+" of --redis; or nacos://HOST:8848/DATAID?group=GROUP&namespace=ID")
	f.StringVar(&credentials, "policy-credentials-file", "", "file with the user and password of Nacos, a line each")
	flags.AddRedis(f)
	f.BoolVar(&p.yes, "yes", false, "write without asking")
	f.BoolVar(&p.dry, "dry-run", false, "show the difference and write nothing")
	return cmd
}

func openStore(to, credentials string, redis policyredis.Config) (store, error) {
	kind, cfg, err := flags.Place(to, true)
	switch {
	case err != nil:
		return nil, exit.Usagef("--to %q: %w", to, err)
	case kind == flags.InFile:
		return nil, exit.Usagef("--to %q: want redis: or nacos://HOST:8848/DATAID", to)
	case credentials != "" && kind != flags.InNacos:
		return nil, exit.Usagef("--policy-credentials-file %s without --to nacos://…: it has the user and password of Nacos", credentials)
	case kind == flags.InNacos:
		cfg.CredentialsFile = credentials
		at, err := nacos.New(cfg)
		if err != nil {
			return nil, exit.Usagef("--to %q: %w", to, err)
		}
		return at, nil
	}
	at, err := policyredis.New(redis)
	if err != nil {
		return nil, exit.Usagef("--redis: %w", err)
	}
	return at, nil
}

// push writes a policy.
type push struct {
	yes, dry bool
	in       io.Reader
	out      io.Writer
}

func (p *push) run(ctx context.Context, file string, at store) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return exit.Usagef("%w", err)
	}
	parsed, err := policy.Parse(text)
	if err != nil {
		return exit.Usagef("%s: %w", file, err)
	}
	reading, cancel := context.WithTimeout(ctx, pushWithin)
	defer cancel()
	old, err := at.Read(reading)
	if err != nil && !errors.Is(err, source.ErrAbsent) {
		return unreached(at, err)
	}
	if old != nil && bytes.Equal(old, text) {
		_, err := fmt.Fprintf(p.out, "%v has this policy already, hash %s\n", at, parsed.Hash)
		return err
	}
	if old == nil {
		_, _ = fmt.Fprintf(p.out, "%v has no policy yet\n", at)
	}
	_, changes, _ := bytes.Cut(diff.Diff(at.String(), old, file, text), []byte("\n")) // the first line repeats the names
	_, _ = p.out.Write(changes)
	if p.dry {
		_, err := fmt.Fprintf(p.out, "hash %s; nothing is written (--dry-run)\n", parsed.Hash)
		return err
	}
	if !p.yes {
		if err := p.ask(at); err != nil {
			return err
		}
	}
	writing, cancel := context.WithTimeout(ctx, pushWithin)
	defer cancel()
	switch err := at.Replace(writing, old, text); {
	case errors.Is(err, source.ErrChanged):
		return fmt.Errorf("%v: %w: nothing is written. Look at the difference again", at, source.ErrChanged)
	case err != nil:
		return unreached(at, err)
	}
	_, err = fmt.Fprintf(p.out, "written to %v, hash %s; who is behind: penstock status\n", at, parsed.Hash)
	return err
}

// ask goes on where somebody says yes.
func (p *push) ask(at store) error {
	_, _ = fmt.Fprintf(p.out, "write it to %v? [y/N] ", at)
	line, err := bufio.NewReader(p.in).ReadString('\n')
	if err != nil && line == "" {
		_, _ = fmt.Fprintln(p.out)
		return exit.Usagef("nobody answers whether to write it: say --yes")
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
		return errors.New("nothing is written")
	}
	return nil
}

func unreached(at store, err error) error {
	if _, isRedis := at.(*policyredis.Key); isRedis {
		if fix := redisconn.Fix(err); fix != "" {
			err = fmt.Errorf("%w: %s", err, fix)
		}
	}
	return exit.With(exit.Unreachable, fmt.Errorf("%v: %w", at, err))
}
