package proxy

import (
	"errors"
	"fmt"
	"strings"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	pb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc/status"

	"penstock/queue"
)

// Answer is what the proxy said to one question: its own code, such as "OK" or
// "TOPIC_NOT_FOUND", and its text. A call that failed has no code.
type Answer struct {
	Code string
	Text string
}

// OK reports whether the question was answered.
func (a Answer) OK() bool { return a.Code == "OK" }

func (a Answer) String() string {
	if a.Code == "" || a.Text == "" {
		return a.Code + a.Text
	}
	return a.Code + ": " + a.Text
}

// Fix is what to do about a question that was not answered, by penstock's flags; "" =
// nothing is known. The texts are gRPC's, crypto/tls's and the proxy's own.
func (a Answer) Fix() string {
	said := func(part string) bool { return strings.Contains(a.Text, part) }
	switch {
	case a.OK():
		return ""
	case a.Code == pb.Code_UNAUTHORIZED.String() && said("no permission"):
		return "give the user of --rocketmq-credentials-file its rights: Pub on the topic for a gateway, Sub on topic and group for an agent (mqadmin createAcl; deploy/rocketmq)"
	case a.Code == pb.Code_UNAUTHORIZED.String(), a.Code == pb.Code_FORBIDDEN.String():
		return "the proxy asks for a user: give its access key and its secret key with --rocketmq-credentials-file (mqadmin createUser; deploy/rocketmq)"
	case a.Code == pb.Code_TOPIC_NOT_FOUND.String(), a.Code == pb.Code_CONSUMER_GROUP_NOT_FOUND.String(), a.Code == pb.Code_ILLEGAL_CONSUMER_GROUP.String():
		return "create topic and group as in deploy/rocketmq, or wait while the broker starts"
	case a.Code == pb.Code_LITE_SUBSCRIPTION_QUOTA_EXCEEDED.String():
		return "raise the group's lite.sub.client.quota (deploy/rocketmq)"
	case a.Code != "":
		return ""
	case said("first record does not look like a TLS handshake"):
		return "the port speaks no TLS: leave --rocketmq-ca-file out, or give the proxy a certificate (tlsCertPath)"
	case said("x509:"):
		return "give the issuer of the proxy's certificate with --rocketmq-ca-file, and a --rocketmq address that the certificate names"
	case said("server preface"):
		return "give --rocketmq the proxy's gRPC port, 8081 by default, not the name server's or the broker's; if it speaks TLS, --rocketmq-ca-file as well"
	}
	return ""
}

// err is nil for an answer, else what endpoint said and what to do about it.
func (a Answer) err(endpoint string) error {
	switch fix := a.Fix(); {
	case a.OK():
		return nil
	case fix == "":
		return fmt.Errorf("%s: %s", endpoint, a)
	default:
		return fmt.Errorf("%s: %s: %s", endpoint, strings.TrimRight(a.String(), ". \n"), fix)
	}
}

func answer(s *pb.Status, err error) Answer {
	if err != nil {
		return Answer{Text: status.Convert(err).Message()}
	}
	return Answer{Code: s.GetCode().String(), Text: s.GetMessage()}
}

// codeOf is the proxy's answer in an error of the library; 0 = none.
func codeOf(err error) pb.Code {
	var rpc *rmq.ErrRpcStatus
	if errors.As(err, &rpc) {
		return pb.Code(rpc.GetCode())
	}
	return 0
}

// Remedy adds to an error of the library what to do about it.
func Remedy(err error) error {
	code := codeOf(err)
	if code == 0 {
		return err
	}
	if fix := (Answer{Code: code.String(), Text: err.Error()}).Fix(); fix != "" {
		return fmt.Errorf("%w: %s", err, fix)
	}
	return err
}

// Refused is the error of a message that no retry of its Send gets through; nil means
// that the broker restarts or is busy. TOPIC_NOT_FOUND and MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
// are what a proxy says while a name server or broker comes back, UNAUTHORIZED what it
// says for seconds after when it did not find the user in a broker that was away.
func Refused(err error) error {
	switch codeOf(err) {
	case pb.Code_PAYLOAD_TOO_LARGE, pb.Code_MESSAGE_BODY_TOO_LARGE, pb.Code_MESSAGE_PROPERTIES_TOO_LARGE, pb.Code_REQUEST_HEADER_FIELDS_TOO_LARGE:
		return fmt.Errorf("%w: the broker's maxMessageSize is below ours: %w", queue.ErrTooLarge, err)
	case pb.Code_LITE_TOPIC_QUOTA_EXCEEDED:
		return fmt.Errorf("%w: too many lanes, raise the broker's maxLmqConsumeQueueNum: %w", queue.ErrFull, err)
	case pb.Code_ILLEGAL_LITE_TOPIC, pb.Code_ILLEGAL_TOPIC, pb.Code_ILLEGAL_MESSAGE_PROPERTY_KEY, pb.Code_FORBIDDEN, pb.Code_BAD_REQUEST, pb.Code_VERSION_UNSUPPORTED:
		return fmt.Errorf("rocketmq: refused: %w", Remedy(err))
	}
	return nil
}
