// Package wire sends requests to the HTTP and JSON APIs of larder-allocator and larderd, over a Unix socket or over TCP
// with TLS and a bearer token.
package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

const (
	requestTimeout = 30 * time.Second
	answerBytesMax = 64 << 20
)

// Options says where a server is and how a client shows who it is.
type Options struct {
	// A path of a Unix socket, http://HOST:PORT or https://HOST:PORT.
	Endpoint string
	// A file with the bearer token. It is read for each request, because Kubernetes replaces files of a Secret.
	TokenFile string
	// A PEM file of the authorities that have signed the server's certificate. Empty: those of the system.
	CAFile string
}

// ErrEncode says that a request was not sent, because its body cannot be encoded.
var ErrEncode = errors.New("the body cannot be encoded")

// StatusError is an answer that refuses a request.
type StatusError struct {
	Status  int
	Code    string
	Message string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s (HTTP %d)", e.Message, e.Status)
}

// IsStatus tells whether err is an answer with this HTTP status.
func IsStatus(err error, status int) bool {
	var refused *StatusError
	return errors.As(err, &refused) && refused.Status == status
}

// Client sends requests to one server. It may be used by several goroutines.
type Client struct {
	base      string
	tokenFile string
	http      *http.Client
}

// New makes a client. It does not connect yet.
func New(options Options) (*Client, error) {
	transport := &http.Transport{MaxIdleConnsPerHost: 2, IdleConnTimeout: 30 * time.Second}
	client := &Client{tokenFile: options.TokenFile, http: &http.Client{Transport: transport, Timeout: requestTimeout}}
	switch {
	case strings.HasPrefix(options.Endpoint, "http://"), strings.HasPrefix(options.Endpoint, "https://"):
		client.base = strings.TrimSuffix(options.Endpoint, "/")
	case strings.HasPrefix(options.Endpoint, "/"):
		client.base = "http://larder"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", options.Endpoint)
		}
	default:
		return nil, fmt.Errorf("endpoint %q: expected the path of a socket, http://HOST:PORT or https://HOST:PORT",
			options.Endpoint)
	}
	if options.CAFile != "" {
		pem, err := os.ReadFile(options.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read the authorities: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no PEM certificate", options.CAFile)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return client, nil
}

// Do sends one request and decodes the answer into answer, unless that is nil. body is sent as JSON, unless it is nil.
func (c *Client) Do(ctx context.Context, method, path string, body, answer any) error {
	var content io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("%s %s: %w: %w", method, path, ErrEncode, err)
		}
		content = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, content)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if c.tokenFile != "" {
		token, err := os.ReadFile(c.tokenFile)
		if err != nil {
			return fmt.Errorf("read the token: %w", err)
		}
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	response, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("no answer: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, answerBytesMax))
	if err != nil {
		return fmt.Errorf("%s %s: read the answer: %w", method, path, err)
	}
	if response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s %s: %w", method, path, refusal(response.StatusCode, text))
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("%s %s: decode the answer: %w", method, path, err)
	}
	return nil
}

func refusal(status int, text []byte) *StatusError {
	var body struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(text, &body); err != nil || body.Error.Message == "" {
		return &StatusError{Status: status, Message: http.StatusText(status)}
	}
	return &StatusError{Status: status, Code: body.Error.Code, Message: body.Error.Message}
}
