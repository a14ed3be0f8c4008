// Package nacos keeps a fleet's policy in Nacos's configuration, through version 1 of
// its HTTP API: an entry is read whole, and a long poll with its MD5 says when it has
// changed. The SDK would do the same over gRPC, for 17 MB of binary.
package nacos

import (
	"context"
	"crypto/md5" //nolint:gosec // Nacos compares by it
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"penstock/policy/source"
)

const (
	// pollFor is how long Nacos holds a poll where nothing changes, the least that it does.
	// A change in the instant before it holds it is not told. answerWithin is what any
	// call may take beyond.
	pollFor, answerWithin = 10 * time.Second, 5 * time.Second
	// retryEvery is between two tries while Nacos is away or its entry cannot be read.
	retryEvery = 2 * time.Second
	// renewBefore is how long before a token's end another one is asked for.
	renewBefore = 30 * time.Second
	// shownWithin bounds the wait for a write to be shown, which Nacos 2.3.2 does 100 ms
	// after its answer: it takes it over from its database. While it does it answers reads
	// with 409; busyFor is between two tries.
	shownWithin, busyFor = 2 * time.Second, 20 * time.Millisecond
	// formMost is the longest form that the web server inside Nacos takes by default.
	formMost = 2 << 20
	// saidMost bounds what is quoted of an error's body.
	saidMost = 200
)

// Config says which entry of which Nacos. ParseURL makes it.
type Config struct {
	Servers   []string // host:port, tried in turn
	TLS       bool
	DataID    string
	Group     string // "" = DEFAULT_GROUP
	Namespace string // its id; "" = public
	// CredentialsFile has user name and password, a line each; "" = Nacos asks for none.
	// It is read at each login.
	CredentialsFile string
}

// ParseURL reads nacos://HOST[:8848][,HOST…]/DATAID?group=GROUP&namespace=ID;
// nacoss:// is the same over TLS.
func ParseURL(text string) (Config, error) {
	const want = "want nacos://HOST:8848/DATAID?group=GROUP&namespace=ID"
	scheme, rest, _ := strings.Cut(text, "://")
	rest, query, _ := strings.Cut(rest, "?")
	hosts, id, _ := strings.Cut(rest, "/")
	c := Config{TLS: scheme == "nacoss"}
	if scheme != "nacos" && scheme != "nacoss" || hosts == "" {
		return c, errors.New(want)
	}
	if strings.Contains(hosts, "@") {
		return c, errors.New("user and password belong into --policy-credentials-file, not into the address")
	}
	for host := range strings.SplitSeq(hosts, ",") {
		u, err := url.Parse("//" + host)
		if err != nil || u.Hostname() == "" {
			return c, fmt.Errorf("host %q: %s", host, want)
		}
		if u.Port() == "" {
			u.Host += ":8848"
		}
		c.Servers = append(c.Servers, u.Host)
	}
	var err error
	if c.DataID, err = url.PathUnescape(id); err != nil || c.DataID == "" || strings.Contains(c.DataID, "/") {
		return c, fmt.Errorf("data id %q: %s", id, want)
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return c, fmt.Errorf("%q: %s", query, want)
	}
	for name, value := range values {
		switch name {
		case "group":
			c.Group = value[0]
		case "namespace", "tenant":
			c.Namespace = value[0]
		default:
			return c, fmt.Errorf("%q is not known: %s", name, want)
		}
	}
	return c, c.Validate()
}

// Validate names the field and what to set instead.
func (c Config) Validate() error {
	for _, f := range []struct{ name, value string }{{"data id", c.DataID}, {"group", c.Group}, {"namespace", c.Namespace}} {
		if i := strings.IndexFunc(f.value, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._:-", r))
		}); i >= 0 {
			return fmt.Errorf("%s %q: Nacos takes letters, digits and . _ : - there", f.name, f.value)
		}
	}
	switch {
	case len(c.Servers) == 0:
		return errors.New("no server is named; name one as host:port")
	case c.DataID == "":
		return errors.New("no data id is named, such as penstock.yaml")
	}
	if c.CredentialsFile != "" {
		_, _, err := readCredentials(c.CredentialsFile)
		return err
	}
	return nil
}

func readCredentials(path string) (user, password string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", "", err
	}
	words := strings.Fields(string(text))
	if len(words) != 2 {
		return "", "", fmt.Errorf("%s: %d words, want the user's name and the password, a line each", path, len(words))
	}
	return words[0], words[1], nil
}

// Entry is a policy in Nacos, a source.Place. Make it with New and Close it.
type Entry struct {
	cfg    Config
	client *http.Client
	retry  time.Duration
	hold   time.Duration // of a poll

	mu      sync.Mutex // guards what follows
	server  int        // the one that answered last
	token   string
	renewAt time.Time
	sum     string // MD5 of the text as last read; "" = there was none
	failed  bool   // the last read
}

// New connects to nothing yet. Group "" becomes DEFAULT_GROUP, namespace public "".
func New(cfg Config) (*Entry, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("policy/source/nacos: %w", err)
	}
	if cfg.Group == "" {
		cfg.Group = "DEFAULT_GROUP"
	}
	if cfg.Namespace == "public" {
		cfg.Namespace = ""
	}
	return &Entry{cfg: cfg, retry: retryEvery, hold: pollFor, client: &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: answerWithin,
	}}}, nil
}

// Close closes idle connections. Watch must have ended.
func (e *Entry) Close() error {
	e.client.CloseIdleConnections()
	return nil
}

func (e *Entry) String() string {
	scheme := "nacos://"
	if e.cfg.TLS {
		scheme = "nacoss://"
	}
	text := scheme + strings.Join(e.cfg.Servers, ",") + "/" + e.cfg.DataID + "?group=" + e.cfg.Group
	if e.cfg.Namespace != "" {
		text += "&namespace=" + e.cfg.Namespace
	}
	return text
}

// Read reads the entry.
func (e *Entry) Read(ctx context.Context) ([]byte, error) {
	read := func() ([]byte, error) { return e.call(ctx, http.MethodGet, "/v1/cs/configs", e.names(), nil) }
	text, err := read()
	for answered(err, http.StatusConflict) && ctx.Err() == nil {
		pause(ctx, busyFor)
		text, err = read()
	}
	if answered(err, http.StatusNotFound) {
		text, err = nil, fmt.Errorf("%w: write one with: penstock policy push FILE --to %v", source.ErrAbsent, e)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failed = err != nil && !errors.Is(err, source.ErrAbsent); !e.failed {
		e.sum = digest(text)
	}
	return text, err
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// digest is what Nacos knows a text by; none has "".
func digest(text []byte) string {
	if text == nil {
		return ""
	}
	sum := md5.Sum(text) //nolint:gosec // as above
	return hex.EncodeToString(sum[:])
}

// Watch polls, and looks whenever Nacos answers: at the latest every pollFor. What
// changes between two polls is told by the second.
func (e *Entry) Watch(ctx context.Context, look func()) {
	for ctx.Err() == nil {
		e.mu.Lock()
		failed := e.failed
		e.mu.Unlock()
		if failed || e.poll(ctx) != nil {
			pause(ctx, e.retry)
		}
		if ctx.Err() == nil {
			look()
		}
	}
}

// poll returns when the entry is another one than was read last, or after pollFor.
func (e *Entry) poll(ctx context.Context) error {
	e.mu.Lock()
	asked := strings.Join([]string{e.cfg.DataID, e.cfg.Group, e.sum}, "\x02")
	e.mu.Unlock()
	if e.cfg.Namespace != "" {
		asked += "\x02" + e.cfg.Namespace
	}
	form := url.Values{"Listening-Configs": {asked + "\x01"}}
	if e.cfg.Namespace != "" {
		form.Set("tenant", e.cfg.Namespace)
	}
	_, err := e.call(ctx, http.MethodPost, "/v1/cs/configs/listener", form, http.Header{"Long-Pulling-Timeout": {strconv.FormatInt(e.hold.Milliseconds(), 10)}})
	return err
}

// Replace writes text where old lies, nil being none; else it is source.ErrChanged.
// Nacos compares by MD5 as it writes, but creates an entry that is not there whatever
// was expected: then, and with servers that do not know the header, a read just before
// has to do. It returns when Nacos shows the text, or after shownWithin.
func (e *Entry) Replace(ctx context.Context, old, text []byte) error {
	check := func() error {
		now, err := e.Read(ctx)
		if err != nil && !errors.Is(err, source.ErrAbsent) {
			return err
		}
		if digest(now) != digest(old) {
			return source.ErrChanged
		}
		return nil
	}
	if err := check(); err != nil {
		return err
	}
	form := e.names()
	form.Set("content", string(text))
	form.Set("type", "yaml")
	header := http.Header{}
	if old != nil {
		header.Set("casMd5", digest(old)) // Nacos reads it in any case
	}
	answer, err := e.call(ctx, http.MethodPost, "/v1/cs/configs", form, header)
	if err == nil && strings.TrimSpace(string(answer)) != "true" {
		err = fmt.Errorf("nacos answers %.*q to a write", saidMost, answer)
	}
	switch sent := len(form.Encode()); {
	case err == nil:
		e.untilShown(ctx, text)
		return nil
	case strings.Contains(err.Error(), "Cas publish fail"): // a read may still show what it was
		return source.ErrChanged
	case answered(err, http.StatusBadRequest) && sent > formMost:
		err = fmt.Errorf("%w: the policy is %d bytes as it is sent, more than Nacos takes: make it shorter, or set its server.tomcat.max-http-form-post-size", err, sent)
	}
	return errors.Join(check(), err) // the text it holds says whether it was changed
}

// untilShown returns when text is what is read, or after shownWithin.
func (e *Entry) untilShown(ctx context.Context, text []byte) {
	ctx, cancel := context.WithTimeout(ctx, shownWithin)
	defer cancel()
	for ctx.Err() == nil {
		if now, err := e.Read(ctx); err == nil && digest(now) == digest(text) {
			return
		}
		pause(ctx, busyFor)
	}
}

func (e *Entry) names() url.Values {
	names := url.Values{"dataId": {e.cfg.DataID}, "group": {e.cfg.Group}}
	if e.cfg.Namespace != "" {
		names.Set("tenant", e.cfg.Namespace)
	}
	return names
}
