package doctor

import (
	"fmt"
	"regexp"
	"strings"
)

// ttlMinutes is how long an idle lane is kept: far more than the longest start
// deadline of 10 minutes, since a lane's messages go with it.
const ttlMinutes = 60

// Setup is what makes a broker and a Redis fit.
type Setup struct {
	MQAdmin []string `json:"mqadmin"` // command lines; mqadmin finds the name server by $NAMESRV_ADDR
	Redis   []string `json:"redis"`   // lines of redis.conf
}

// NewSetup fills the user's names in.
func NewSetup(cfg Config) Setup {
	return Setup{
		MQAdmin: []string{topicLine(cfg), groupLine(cfg, "")},
		Redis: []string{
			"maxmemory 2gb", "maxmemory-policy noeviction", "appendonly yes", "appendfsync everysec", `save ""`,
		},
	}
}

// Text is a setup to be read, and run after the first line's name server is put in.
func (s Setup) Text() string {
	return `# RocketMQ 5.5, with a proxy in cluster mode. Put your name server and cluster in.
export NAMESRV_ADDR=127.0.0.1:9876
` + strings.Join(s.MQAdmin, "\n") + `

# redis.conf of one primary, version 7 or newer, no cluster mode. maxmemory to your machine.
` + strings.Join(s.Redis, "\n") + "\n"
}

func topicLine(cfg Config) string {
	return fmt.Sprintf("mqadmin updateTopic -c DefaultCluster -t %s -r 1 -w 1 -a +message.type=LITE,+lite.topic.expiration=%d", quoted(cfg.Topic), ttlMinutes)
}

// groupLine sets all that a group needs; more goes before the other attributes.
func groupLine(cfg Config, more string) string {
	return fmt.Sprintf("mqadmin updateSubGroup -c DefaultCluster -g %s -o true -r 10000 --attributes %s", quoted(cfg.Group),
		quoted(more+"+lite.bind.topic="+cfg.Topic+",+lite.sub.client.max.event.cnt=1000000,+lite.sub.client.quota=10000"))
}

var plain = regexp.MustCompile(`^[A-Za-z0-9_.,%=+-]+$`)

// quoted is one word of a shell.
func quoted(word string) string {
	if plain.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
