package portforward

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilportforward "k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/transport/websocket"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
	streamingspdy "k8s.io/streaming/pkg/httpstream/spdy"
)

const (
	// pingPeriod keeps proxies from ending an idle connection.
	pingPeriod = 10 * time.Second
)

// open opens a stream to a port of a Pod.
func open(ctx context.Context, config *rest.Config, pod corev1.Pod, port int32) (*conn, error) {
	connection, err := upgrade(ctx, config, pod)
	if err != nil {
		return nil, err
	}
	// Creating a stream waits for its acknowledgement, and ends with the connection.
	stop := context.AfterFunc(ctx, func() { _ = connection.Close() })
	opened, err := openStreams(connection, pod, port)
	if !stop() {
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		_ = connection.Close()
		return nil, fmt.Errorf("open a stream to port %d: %w", port, err)
	}
	return opened, nil
}

func openStreams(connection httpstream.Connection, pod corev1.Pod, port int32) (*conn, error) {
	headers := http.Header{}
	headers.Set(corev1.PortHeader, strconv.Itoa(int(port)))
	headers.Set(corev1.PortForwardRequestIDHeader, "0") // the connection serves one request
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	failures, err := connection.CreateStream(headers)
	if err != nil {
		return nil, err
	}
	if err := failures.Close(); err != nil { // closes the direction to the Pod only
		return nil, err
	}
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := connection.CreateStream(headers)
	if err != nil {
		return nil, err
	}
	return newConn(connection, data, failures, address(fmt.Sprintf("%s/%s:%d", pod.Namespace, pod.Name, port))), nil
}

// upgrade opens a WebSocket; if kube-apiserver or a proxy refuses that, a SPDY connection.
func upgrade(ctx context.Context, config *rest.Config, pod corev1.Pod) (httpstream.Connection, error) {
	target, err := portForwardURL(config, pod)
	if err != nil {
		return nil, err
	}
	connection, err := upgradeToWebSocket(ctx, config, target)
	if !httpstream.IsUpgradeFailure(err) && !httpstream.IsHTTPSProxyError(err) {
		return connection, err
	}
	connection, spdyErr := upgradeToSPDY(ctx, config, target)
	if spdyErr == nil {
		return connection, nil
	}
	// Only the answer to the WebSocket is a status with a reason.
	if failure, ok := errors.AsType[*httpstream.UpgradeFailureError](err); ok {
		if status, ok := errors.AsType[*apierrors.StatusError](failure.Cause); ok {
			return nil, status
		}
	}
	return nil, fmt.Errorf("WebSocket: %w; SPDY: %w", err, spdyErr)
}

func portForwardURL(config *rest.Config, pod corev1.Pod) (*url.URL, error) {
	target, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("address of kube-apiserver: %w", err)
	}
	return target.JoinPath("api", "v1", "namespaces", pod.Namespace, "pods", pod.Name, "portforward"), nil
}

func upgradeToWebSocket(ctx context.Context, config *rest.Config, target *url.URL) (httpstream.Connection, error) {
	transport, holder, err := websocket.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, err
	}
	socket, err := websocket.Negotiate(transport, holder, request, utilportforward.WebsocketsSPDYTunnelingPrefix+utilportforward.PortForwardV1Name)
	if err != nil {
		return nil, err
	}
	return streamingspdy.NewClientConnectionWithPings(portforward.NewTunnelingConnectionWithLogger(klog.FromContext(ctx), socket), pingPeriod)
}

func upgradeToSPDY(ctx context.Context, config *rest.Config, target *url.URL) (httpstream.Connection, error) {
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), nil)
	if err != nil {
		return nil, err
	}
	connection, _, err := spdy.NegotiateStreaming(upgrader, &http.Client{Transport: transport}, request, utilportforward.PortForwardV1Name)
	return connection, err
}
