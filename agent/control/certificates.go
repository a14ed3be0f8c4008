package control

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// soon is how long before the end of a certificate people are told: the log once
	// per warnEvery, and penstock status.
	soon, warnEvery = 14 * 24 * time.Hour, 24 * time.Hour
	// lookEvery is how often the files are looked at for it, beside each handshake.
	lookEvery = time.Hour
)

// expiry is when the first certificate of a file ends.
type expiry struct {
	role string // server or client_ca
	flag string
	at   time.Time
}

// text is what people are told, without the file's path: Cluster shows it to anybody.
func (e *expiry) text(now time.Time) string {
	switch left := e.at.Sub(now); {
	case left >= 48*time.Hour:
		return fmt.Sprintf("the certificate of %s ends in %d days", e.flag, left/(24*time.Hour))
	case left > 0:
		return fmt.Sprintf("the certificate of %s ends in %d hours", e.flag, left/time.Hour)
	}
	return fmt.Sprintf("the certificate of %s has ended", e.flag)
}

// keyFiles are the server's certificate and the client CA, read again at the first
// handshake after a file changed. Files that cannot be read leave the old ones in use.
type keyFiles struct {
	cfg Config
	log *slog.Logger

	warned time.Time // watch's

	mu      sync.Mutex // guards all below
	stamp   string     // of the files as last read, well or not
	current *tls.Config
	ends    []expiry
}

func newKeyFiles(cfg Config, log *slog.Logger) (*keyFiles, error) {
	k := &keyFiles{cfg: cfg, log: log, stamp: stampOf(cfg)}
	return k, k.read()
}

func (k *keyFiles) config(*tls.ClientHelloInfo) (*tls.Config, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refresh()
	return k.current, nil
}

// refresh reads the files again if they changed. The caller has the mutex.
func (k *keyFiles) refresh() {
	stamp := stampOf(k.cfg)
	if stamp == k.stamp {
		return
	}
	k.stamp = stamp
	if err := k.read(); err != nil {
		k.log.Error("new grpc certificates cannot be used, the old ones stay", "err", err)
		return
	}
	k.log.Info("grpc certificates read again", "cert", k.cfg.Cert)
}

// expiries are those of the certificates in use.
func (k *keyFiles) expiries() []expiry {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refresh()
	return k.ends
}

// ending is what people are to be told at now; nil: nothing ends soon.
func (k *keyFiles) ending(now time.Time) (texts []string) {
	for _, e := range k.expiries() {
		if e.at.Sub(now) < soon {
			texts = append(texts, e.text(now))
		}
	}
	return texts
}

// watch says once a day what ends soon, until ctx ends.
func (k *keyFiles) watch(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		now := time.Now()
		if now.Sub(k.warned) >= warnEvery {
			for _, text := range k.ending(now) {
				k.warned = now
				k.log.Warn("a grpc certificate ends soon", "why", text, "cert", k.cfg.Cert, "client_ca", k.cfg.ClientCA)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Describe is prometheus.Collector.
func (k *keyFiles) Describe(ch chan<- *prometheus.Desc) { ch <- expiryDesc }

// Collect is prometheus.Collector. It looks at the files: a metric must not be as old
// as the last handshake.
func (k *keyFiles) Collect(ch chan<- prometheus.Metric) {
	for _, e := range k.expiries() {
		ch <- prometheus.MustNewConstMetric(expiryDesc, prometheus.GaugeValue, float64(e.at.Unix()), e.role)
	}
}

var expiryDesc = prometheus.NewDesc("penstock_cert_expiry_timestamp_seconds",
	"When the first certificate of a file of gRPC ends: server (--grpc-cert), client_ca (--grpc-client-ca). Unix time.", []string{"role"}, nil)

// read takes the files into use, or leaves all as it was.
func (k *keyFiles) read() error {
	pair, err := tls.LoadX509KeyPair(k.cfg.Cert, k.cfg.Key)
	if err != nil {
		return fmt.Errorf("control: certificate %s, key %s: %w", k.cfg.Cert, k.cfg.Key, err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}}
	ends := []expiry{{"server", "--grpc-cert", firstEnd(pair.Certificate)}}
	if k.cfg.ClientCA == "" {
		k.current, k.ends = c, ends
		return nil
	}
	authority, err := os.ReadFile(k.cfg.ClientCA)
	if err != nil {
		return fmt.Errorf("control: client CA: %w", err)
	}
	c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.VerifyClientCertIfGiven
	if !c.ClientCAs.AppendCertsFromPEM(authority) {
		return fmt.Errorf("control: client CA %s holds no certificate in PEM", k.cfg.ClientCA)
	}
	k.current, k.ends = c, append(ends, expiry{"client_ca", "--grpc-client-ca", firstEnd(blocks(authority))})
	return nil
}

// firstEnd is when the first of them ends; zero where none can be read.
func firstEnd(ders [][]byte) (first time.Time) {
	for _, der := range ders {
		if c, err := x509.ParseCertificate(der); err == nil && (first.IsZero() || c.NotAfter.Before(first)) {
			first = c.NotAfter
		}
	}
	return first
}

// blocks are the contents of a PEM file.
func blocks(file []byte) (ders [][]byte) {
	for block, rest := pem.Decode(file); block != nil; block, rest = pem.Decode(rest) {
		ders = append(ders, block.Bytes)
	}
	return ders
}

// stampOf changes when a file does.
func stampOf(cfg Config) (stamp string) {
	for _, path := range []string{cfg.Cert, cfg.Key, cfg.ClientCA} {
		if info, err := os.Stat(path); err == nil {
			stamp += fmt.Sprint(info.ModTime().UnixNano(), info.Size(), " ")
		} else {
			stamp += "- "
		}
	}
	return stamp
}
