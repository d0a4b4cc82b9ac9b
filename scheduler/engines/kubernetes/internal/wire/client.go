// Package wire sends requests to the HTTP and JSON APIs of larder-allocator and larderd, over a Unix socket or over TCP
// with TLS and a bearer token. Of several allocators that stand in for each other, it finds the one that leads.
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
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

const (
	requestTimeout = 30 * time.Second
	connectTimeout = 5 * time.Second
	// For the answer to a GET, of one of several servers: one that hangs must not keep its clients from the next leader.
	timeoutAmongSeveral = 4 * time.Second
	answerBytesMax      = 64 << 20
)

// Options says where a server is and how a client shows who it is.
type Options struct {
	// A path of a Unix socket, http://HOST:PORT or https://HOST:PORT, or several with commas between them.
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

// server is one of the servers that stand in for each other.
type server struct {
	base string
	http *http.Client
}

// Client sends requests to the server that answered last. It may be used by several goroutines.
type Client struct {
	servers    []server
	tokenFile  string
	getTimeout time.Duration
	last       atomic.Int64 // index of the server that answered last
}

// HasSeveral tells whether several servers stand in for each other. Then a GET must be answered within 4 s.
func (c *Client) HasSeveral() bool {
	return len(c.servers) > 1
}

// New makes a client. It does not connect yet.
func New(options Options) (*Client, error) {
	var pool *x509.CertPool
	if options.CAFile != "" {
		pem, err := os.ReadFile(options.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read the authorities: %w", err)
		}
		pool = x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no PEM certificate", options.CAFile)
		}
	}
	client := &Client{tokenFile: options.TokenFile, getTimeout: requestTimeout}
	for _, endpoint := range strings.Split(options.Endpoint, ",") {
		one, err := serverAt(strings.TrimSpace(endpoint), pool)
		if err != nil {
			return nil, err
		}
		client.servers = append(client.servers, one)
	}
	if client.HasSeveral() {
		client.getTimeout = timeoutAmongSeveral
	}
	return client, nil
}

func serverAt(endpoint string, authorities *x509.CertPool) (server, error) {
	dialer := &net.Dialer{Timeout: connectTimeout}
	transport := &http.Transport{
		MaxIdleConnsPerHost: 2, IdleConnTimeout: 30 * time.Second, DialContext: dialer.DialContext,
		TLSHandshakeTimeout: connectTimeout,
	}
	if authorities != nil {
		transport.TLSClientConfig = &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS12}
	}
	found := server{http: &http.Client{Transport: transport, Timeout: requestTimeout}}
	switch {
	case strings.HasPrefix(endpoint, "http://"), strings.HasPrefix(endpoint, "https://"):
		found.base = strings.TrimSuffix(endpoint, "/")
	case strings.HasPrefix(endpoint, "/"):
		found.base = "http://larder"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", endpoint)
		}
	default:
		return found, fmt.Errorf("endpoint %q: expected the path of a socket, http://HOST:PORT or https://HOST:PORT",
			endpoint)
	}
	return found, nil
}

// Do sends one request and decodes the answer into answer, unless that is nil. body is sent as JSON, unless it is nil. A
// request goes to the next server if nobody listens at one, or if that one does not lead. A GET goes on whatever went
// wrong; another request may have been carried out, and its error is returned.
func (c *Client) Do(ctx context.Context, method, path string, body, answer any) error {
	var content []byte
	if body != nil {
		var err error
		if content, err = json.Marshal(body); err != nil {
			return fmt.Errorf("%s %s: %w: %w", method, path, ErrEncode, err)
		}
	}
	first := int(c.last.Load())
	for tried := 0; ; tried++ {
		at := (first + tried) % len(c.servers)
		err := c.ask(ctx, c.servers[at], method, path, content, answer)
		_, refused := errors.AsType[*StatusError](err)
		if err == nil || refused {
			c.last.Store(int64(at))
		} else { // the next request does not wait for this one again
			c.last.Store(int64((at + 1) % len(c.servers)))
		}
		if ctx.Err() != nil || tried+1 == len(c.servers) || !isForAnother(err, method) {
			return err
		}
	}
}

// isForAnother tells whether another server may be asked instead.
func isForAnother(err error, method string) bool {
	if err == nil {
		return false
	}
	if refused, ok := errors.AsType[*StatusError](err); ok {
		return refused.Status == http.StatusMisdirectedRequest
	}
	if broken, ok := errors.AsType[*net.OpError](err); ok && broken.Op == "dial" {
		return true
	}
	_, isURL := errors.AsType[*url.Error](err)
	return isURL && method == http.MethodGet
}

func (c *Client) ask(ctx context.Context, to server, method, path string, body []byte, answer any) error {
	var content io.Reader
	if body != nil {
		content = bytes.NewReader(body)
	}
	if method == http.MethodGet {
		limited, cancel := context.WithTimeout(ctx, c.getTimeout)
		defer cancel()
		ctx = limited
	}
	request, err := http.NewRequestWithContext(ctx, method, to.base+path, content)
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
	response, err := to.http.Do(request)
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
