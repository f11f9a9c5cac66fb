package client

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/net/http/httpproxy"
)

// dialServer connects to an address of the gateway, through the proxy that the environment names
// for it, as kubectl does.
func (g *Gateway) dialServer(ctx context.Context, address string) (net.Conn, error) {
	env := func(upper, lower string) string { return cmp.Or(g.env(upper), g.env(lower)) }
	proxies := httpproxy.Config{HTTPSProxy: env("HTTPS_PROXY", "https_proxy"), NoProxy: env("NO_PROXY", "no_proxy")}
	proxy, err := proxies.ProxyFunc()(&url.URL{Scheme: "https", Host: address})
	if err != nil {
		return nil, fmt.Errorf("HTTPS_PROXY: %w", err)
	}
	if proxy == nil {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}
	conn, err := dialThrough(ctx, proxy, address)
	if err != nil {
		return nil, fmt.Errorf("through the proxy %s of HTTPS_PROXY: %w", proxy.Redacted(), err)
	}
	return conn, nil
}

// dialThrough asks a proxy for a connection to an address.
func dialThrough(ctx context.Context, proxy *url.URL, address string) (net.Conn, error) {
	port, dial := "80", new(net.Dialer).DialContext
	switch proxy.Scheme {
	case "http":
	case "https":
		port, dial = "443", (&tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12}}).DialContext
	default:
		return nil, fmt.Errorf("its scheme %q is not http or https", proxy.Scheme)
	}
	conn, err := dial(ctx, "tcp", net.JoinHostPort(proxy.Hostname(), cmp.Or(proxy.Port(), port)))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	reader, err := askProxy(conn, proxy, address)
	if !stop() {
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &proxied{Conn: conn, reader: reader}, nil
}

func askProxy(conn net.Conn, proxy *url.URL, address string) (*bufio.Reader, error) {
	request := &http.Request{Method: http.MethodConnect, URL: &url.URL{Host: address}, Host: address, Header: http.Header{}}
	if proxy.User != nil {
		password, _ := proxy.User.Password()
		credentials := base64.StdEncoding.EncodeToString([]byte(proxy.User.Username() + ":" + password))
		request.Header.Set("Proxy-Authorization", "Basic "+credentials)
	}
	if err := request.Write(conn); err != nil {
		return nil, err
	}
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK { // else the body is the connection
		return nil, errors.Join(fmt.Errorf("it answers %s", response.Status), response.Body.Close())
	}
	return reader, nil
}

// proxied is a connection whose first bytes may have been read with the answer of the proxy.
type proxied struct {
	net.Conn
	reader *bufio.Reader
}

func (p *proxied) Read(data []byte) (int, error) { return p.reader.Read(data) }
