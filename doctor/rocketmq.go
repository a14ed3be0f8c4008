package doctor

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"penstock/queue/rocketmq/proxy"
)

const (
	// attempts is -r 10000 and the first delivery. A lease that runs out counts as
	// one, a Suspend does not.
	attempts = 10_001
	// quota of lanes that the fleet is tested with; the broker's default is 2,000.
	quota = 10_000
)

func checkRocketMQ(ctx context.Context, cfg Config, p Probes) []Check {
	from := time.Now()
	if _, err := ask(ctx, func(ctx context.Context) (none, error) { return none{}, p.Dial(ctx, cfg.RocketMQ) }); err != nil {
		return append([]Check{fail("proxy", err, fmt.Sprintf("start a RocketMQ 5.5 proxy in cluster mode, or set --rocketmq; %s is not reachable", cfg.RocketMQ))}, unseen(cfg)...)
	}
	reached := time.Since(from)
	r, err := ask(ctx, p.RocketMQ)
	if err != nil {
		return append([]Check{fail("proxy", err, "set --rocketmq, --topic and --group")}, unseen(cfg)...)
	}
	checks := judgeRoute(cfg, r, reached)
	if r.Route.OK() {
		checks = append(checks, checkAddresses(ctx, cfg, p, r.Addresses)...)
		checks = append(checks, judgeGroup(cfg, r)...)
	}
	return append(checks, unseen(cfg)...)
}

type none struct{}

// judgeRoute is the proxy's answer and what it says of the topic.
func judgeRoute(cfg Config, r proxy.Report, reached time.Duration) []Check {
	answers := ok("proxy", "%s answers, connected in %v", cfg.RocketMQ, rounded(reached))
	switch r.Route.Code {
	case "OK":
	case "":
		return []Check{{
			Name: "proxy", Status: Fail, Evidence: fmt.Sprintf("%s is open and gives no answer: %s", cfg.RocketMQ, oneLine(r.Route.Text)),
			Fix: cmp.Or(r.Route.Fix(), "give --rocketmq the gRPC port of a proxy, 8081 by default"),
		}}
	case "UNAUTHORIZED", "FORBIDDEN":
		return []Check{{Name: "proxy", Status: Fail, Evidence: oneLine(r.Route.String()), Fix: r.Route.Fix()}}
	default:
		return []Check{answers, {
			Name: "topic", Status: Fail, Evidence: cfg.Topic + ": " + oneLine(r.Route.String()),
			Fix: topicLine(cfg) + "\nif it exists: start the broker; the name server routes to it some seconds later",
		}}
	}
	answers.Evidence += "; broker " + strings.Join(r.Brokers, ", ")
	types := strings.Join(r.Types, ",")
	return []Check{
		answers,
		judge("topic", types == "LITE", Fail, fmt.Sprintf("%s takes %s messages", cfg.Topic, types), topicLine(cfg)+"\nif other programs use it: choose another --topic"),
		judge("topic queues", r.Queues == 1, Warn, fmt.Sprintf("read queues: %d", r.Queues), topicLine(cfg)+"\nan agent polls once for each queue"),
	}
}

// checkAddresses are where the proxy sends its clients: behind a mapped port or a
// load balancer that may be another place than the one we came to.
func checkAddresses(ctx context.Context, cfg Config, p Probes, addresses []string) []Check {
	var away []string
	_, _ = ask(ctx, func(ctx context.Context) (none, error) {
		for _, a := range addresses {
			if a != cfg.RocketMQ && p.Dial(ctx, a) != nil {
				away = append(away, a)
			}
		}
		return none{}, nil
	})
	evidence := "the proxy sends clients to " + strings.Join(addresses, ", ")
	if len(away) > 0 {
		evidence += "; not reachable: " + strings.Join(away, ", ")
	}
	return []Check{judge("route", len(away) == 0, Fail, evidence, `set "useEndpointPortFromRequest": true in rmq-proxy.json where ports are mapped, or open the way to the address`)}
}

// judgeGroup is the consumer group as a lite consumer finds it.
func judgeGroup(cfg Config, r proxy.Report) []Check {
	fix := groupLine(cfg, "")
	if r.Group.Code == "UNAUTHORIZED" {
		c := Check{Name: "group", Status: Fail, Evidence: cfg.Group + ": " + oneLine(r.Group.String()), Fix: r.Group.Fix()}
		if cfg.Engine == "" { // a gateway, which does no more than publish
			c.Status = Warn
		}
		return []Check{c}
	}
	if !r.Group.OK() {
		c := Check{Name: "group", Status: Fail, Evidence: cfg.Group + ": " + oneLine(r.Group.String()), Fix: fix}
		if strings.Contains(r.Group.Text, "expected to bind topic") {
			c.Fix += "\nif other agents use it: choose another --group, or their --topic"
		}
		return []Check{c}
	}
	return []Check{
		ok("group", "%s is a lite group bound to %s", cfg.Group, cfg.Topic),
		judgeBind(cfg, r.Bind),
		judge("group order", r.Ordered, Fail, fmt.Sprintf("ordered: %t", r.Ordered), fix),
		judge("group retries", r.Attempts >= attempts, Fail, fmt.Sprintf("%d deliveries until a message is a dead letter, want %d: each lease that runs out is one", r.Attempts, attempts), fix),
		judge("lane quota", r.Quota >= quota, Warn, fmt.Sprintf("LiteTopics one agent may subscribe: %d, want %d", r.Quota, quota), fix),
		judge("batch", r.Batch == 1, Warn, fmt.Sprintf("messages of one receive: %d; agents ask for 1 themselves", r.Batch), `"grpcClientConsumerLongPollingBatchSize": 1 in rmq-proxy.json`),
	}
}

func judgeBind(cfg Config, a proxy.Answer) Check {
	const name = "lite binding"
	switch {
	case a.OK():
		return ok(name, "%s may subscribe LiteTopics of %s: the proxy is in cluster mode", cfg.Group, cfg.Topic)
	case strings.Contains(a.Text, "not supported for this group"):
		return Check{Name: name, Status: Fail, Evidence: "the group subscribes everything by itself: it has lite.sub.wildcard, whose value does not matter", Fix: groupLine(cfg, "-lite.sub.wildcard,")}
	case a.Code == "LITE_SUBSCRIPTION_QUOTA_EXCEEDED":
		return Check{Name: name, Status: Fail, Evidence: oneLine(a.String()), Fix: groupLine(cfg, "")}
	}
	return Check{
		Name: name, Status: Fail, Evidence: oneLine(a.String()),
		Fix: `run the proxy as a process of its own with "proxyMode": "cluster" (-pm cluster): one inside the broker (-pm local, --enable-proxy) has no LiteTopics` +
			"\nset enableLmq=true and enableMultiDispatch=true in broker.conf, and see that the broker runs",
	}
}

// unseen is what no gRPC call shows.
func unseen(cfg Config) []Check {
	return []Check{
		{
			Name: "topic TTL", Status: Warn, Evidence: fmt.Sprintf("cannot be seen from here; want %d minutes: a lane goes with its messages so long after the last was published; -1 keeps all for ever", ttlMinutes),
			Fix: "to see it (column TTL): mqadmin getParentTopicInfo -p " + quoted(cfg.Topic) + "\nto set it: " + topicLine(cfg),
		},
		{
			Name: "group events", Status: Warn, Evidence: "cannot be seen from here; want lite.sub.client.max.event.cnt=1000000: with the default of 400 one message in ten waits 15 s",
			Fix: "to see it (attributes): mqadmin getConsumerConfig -g " + quoted(cfg.Group) + "\nto set it: " + groupLine(cfg, ""),
		},
	}
}

func rounded(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
