package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/show"
	penstockv1 "penstock/proto/penstock/v1"
)

// A drain looks every lookEvery, and says how far it is at least every progressEvery.
const lookEvery, progressEvery = 100 * time.Millisecond, 5 * time.Second

func newDrain() *cobra.Command {
	var c caller
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Make an engine take no more work, and wait until it is idle",
		Long: `drain makes the agent of NODE take no more work: health says NOT_SERVING, its lanes go to others, what runs goes
on. The process stays, until: penstock resume NODE. It finds the agent through the one that --grpc names, waits
until nothing runs and says how far it is. Interrupted, the engine stays draining.

Off the agent's host it needs a client certificate, see docs/status.md.`,
		Example: `  penstock drain n7
  penstock drain n7 --grpc gpu1:4781 --ca ca.pem --cert me.pem --key me.key
  penstock drain n7 --wait 0        # do not wait`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.load(cmd.Flags()); err != nil {
				return err
			}
			if wait < 0 {
				return exit.Usagef("--wait %v: want 0 (do not wait) or more", wait)
			}
			a, err := c.find(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer a.close()
			return a.drain(cmd.Context(), wait, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	c.flags(cmd.Flags())
	cmd.Flags().DurationVar(&wait, "wait", 10*time.Minute, "how long to wait for what runs; 0 = not at all")
	return cmd
}

// target is the agent of one node.
type target struct {
	node, address string
	client        penstockv1.AgentServiceClient
	close         func()
}

// find connects to the agent of node: the one --grpc names, or the one it knows of.
func (c *caller) find(ctx context.Context, node string) (*target, error) {
	answer, err := call(ctx, c, penstockv1.AgentServiceClient.Cluster, &penstockv1.ClusterRequest{})
	if err != nil {
		return nil, err
	}
	engines := answer.GetEngines()
	i := slices.IndexFunc(engines, func(e *penstockv1.EngineState) bool { return e.GetNode() == node })
	if i < 0 {
		names := make([]string, len(engines))
		for i, e := range engines {
			names[i] = e.GetNode()
		}
		return nil, fmt.Errorf("%s knows no node %q; it knows: %s", c.grpc, node, strings.Join(names, ", "))
	}
	address := c.grpc
	if !engines[i].GetLocal() {
		if address = engines[i].GetGrpc(); address == "" {
			return nil, fmt.Errorf("%s does not know the address of the agent of %s: name it with --grpc HOST:PORT", c.grpc, node)
		}
	}
	t := &target{node: node, address: address}
	t.client, t.close, err = c.dial(address)
	return t, err
}

func (t *target) drain(ctx context.Context, wait time.Duration, out, progress io.Writer) error {
	once, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	answer, err := t.client.Drain(once, &penstockv1.DrainRequest{Node: t.node})
	if err != nil {
		return explain(t.address, err)
	}
	if wait == 0 {
		_, err := fmt.Fprintf(out, "%s is draining, %s in flight\n", t.node, show.Plural(int(answer.GetInflightRequests()), "request", "requests"))
		return err
	}
	return t.follow(ctx, wait, out, progress)
}

// follow waits until nothing runs and says how far it is.
func (t *target) follow(ctx context.Context, wait time.Duration, out, progress io.Writer) error {
	begin := time.Now()
	limit := time.NewTimer(wait)
	defer limit.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	left, said := int32(-1), begin
	for {
		e, err := t.state(ctx)
		took := time.Since(begin)
		switch {
		case ctx.Err() != nil:
			return t.unfinished("interrupted", left)
		case err != nil:
			return explain(t.address, err)
		case e.GetCondition() != "draining":
			return fmt.Errorf("%s was resumed meanwhile: it is %s", t.node, cmp.Or(e.GetWhy(), e.GetCondition()))
		case e.GetInflightRequests() == 0:
			_, err := fmt.Fprintf(out, "%s is drained after %.1f s; to take work again: penstock resume %s\n", t.node, took.Seconds(), t.node)
			return err
		}
		if now := e.GetInflightRequests(); now != left && time.Since(said) >= time.Second || left < 0 || time.Since(said) >= progressEvery {
			said = time.Now()
			_, _ = fmt.Fprintf(progress, "%s: %s in flight after %.0f s\n", t.node, show.Plural(int(now), "request", "requests"), took.Seconds())
		}
		left = e.GetInflightRequests()
		select {
		case <-look.C:
		case <-limit.C:
			return t.unfinished(fmt.Sprintf("not done within %v", wait), left)
		case <-ctx.Done():
		}
	}
}

func (t *target) unfinished(why string, left int32) error {
	return fmt.Errorf("%s: %s stays draining, %s in flight; to take work again: penstock resume %s", why, t.node, show.Plural(int(left), "request", "requests"), t.node)
}

// state waits for a connection that is made anew, as the agent asks for now and then.
func (t *target) state(ctx context.Context) (*penstockv1.EngineState, error) {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	r, err := t.client.GetState(ctx, &penstockv1.GetStateRequest{Node: t.node}, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	if len(r.GetEngines()) != 1 {
		return nil, fmt.Errorf("%s named %d engines, want %s alone", t.address, len(r.GetEngines()), t.node)
	}
	return r.GetEngines()[0], nil
}
