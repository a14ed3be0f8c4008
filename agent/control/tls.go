package control

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	penstockv1 "penstock/proto/penstock/v1"
)

// open are the methods that anybody may call: they change nothing and show neither
// tenants nor requests.
var open = map[string]bool{
	healthpb.Health_Check_FullMethodName: true, healthpb.Health_Watch_FullMethodName: true, healthpb.Health_List_FullMethodName: true,
	penstockv1.AgentService_GetState_FullMethodName: true, penstockv1.AgentService_WatchState_FullMethodName: true,
	penstockv1.AgentService_Cluster_FullMethodName: true, "/" + orcaService.ServiceName + "/StreamCoreMetrics": true,
}

func guardUnary(ctx context.Context, r any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if err := allow(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handle(ctx, r)
}

func guardStream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if err := allow(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	return handle(server, stream)
}

// allow lets everybody call an open method, and the others who is on this host or has
// shown a certificate of the client CA.
func allow(ctx context.Context, method string) error {
	if open[method] {
		return nil
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return status.Error(codes.PermissionDenied, "the caller is not known")
	}
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
		return nil
	}
	if from, ok := p.Addr.(*net.TCPAddr); ok && from.IP.IsLoopback() {
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "%s from another host needs a client certificate: start the agent with --grpc-cert, --grpc-key and --grpc-client-ca, and call with --cert, --key and --ca", method)
}

// eitherCredentials speak TLS with who begins with a TLS handshake, and plain text
// with others: probes of Kubernetes and callers on this host have no certificates.
type eitherCredentials struct {
	tls, plain credentials.TransportCredentials
}

func newEitherCredentials(keys *keyFiles) credentials.TransportCredentials {
	return &eitherCredentials{
		tls:   credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: keys.config}),
		plain: insecure.NewCredentials(),
	}
}

// tlsHandshake is the first byte of a connection that speaks TLS; one that speaks
// HTTP/2 begins with a letter.
const tlsHandshake = 0x16

func (c *eitherCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	begun := &begunConn{Conn: conn, begin: make([]byte, 1)}
	if _, err := io.ReadFull(conn, begun.begin); err != nil {
		return nil, nil, err
	}
	if begun.begin[0] == tlsHandshake {
		return c.tls.ServerHandshake(begun)
	}
	return c.plain.ServerHandshake(begun)
}

func (c *eitherCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("control: credentials of a server")
}

func (c *eitherCredentials) Info() credentials.ProtocolInfo { return c.tls.Info() }

func (c *eitherCredentials) Clone() credentials.TransportCredentials {
	return &eitherCredentials{tls: c.tls.Clone(), plain: c.plain.Clone()}
}

func (c *eitherCredentials) OverrideServerName(string) error { return nil }

// begunConn gives back what was read of it to find out its protocol.
type begunConn struct {
	net.Conn
	begin []byte // not read yet; only the handshake's goroutine and the one reader after it use it
}

func (c *begunConn) Read(p []byte) (int, error) {
	if len(c.begin) > 0 {
		n := copy(p, c.begin)
		c.begin = c.begin[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}
