package kube

import (
	"bytes"
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// Kinds that are watched: their resource names in the Kubernetes API.
const (
	services       = "services"
	pods           = "pods"
	nodes          = "nodes"
	endpointSlices = "endpointslices"
	endpoints      = "endpoints"
)

// ObjectClient lists and watches the objects of one kind in all namespaces. It is safe for
// concurrent use.
type ObjectClient interface {
	List(ctx context.Context, kind string, options metav1.ListOptions) (runtime.Object, error)
	// ListMetadata lists the metadata alone.
	ListMetadata(ctx context.Context, kind string, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error)
	Watch(ctx context.Context, kind string, options metav1.ListOptions) (watch.Interface, error)
}

// NewObjectClient returns an ObjectClient that decodes only the fields that Watches uses. It
// contacts nothing.
func NewObjectClient(cfg *rest.Config) (ObjectClient, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	own := rest.CopyConfig(cfg)
	own.ContentType = runtime.ContentTypeProtobuf
	own.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	codecs := maskedCodecs{NegotiatedSerializer: newSerializer(scheme), masks: newKindMasks()}
	client := objectClient{parameters: runtime.NewParameterCodec(scheme)}
	if client.core, err = newRESTClient(own, corev1.SchemeGroupVersion, codecs); err != nil {
		return nil, err
	}
	quiet := rest.CopyConfig(own)
	quiet.WarningHandlerWithContext = rest.NoWarnings{} // each answer says that Endpoints are deprecated
	if client.endpoints, err = newRESTClient(quiet, corev1.SchemeGroupVersion, codecs); err != nil {
		return nil, err
	}
	if client.discovery, err = newRESTClient(own, discoveryv1.SchemeGroupVersion, codecs); err != nil {
		return nil, err
	}
	return client, nil
}

type objectClient struct {
	core, discovery, endpoints rest.Interface
	parameters                 runtime.ParameterCodec
}

func (c objectClient) List(ctx context.Context, kind string, options metav1.ListOptions) (runtime.Object, error) {
	var list runtime.Object
	switch kind {
	case services:
		list = &corev1.ServiceList{}
	case pods:
		list = &corev1.PodList{}
	case nodes:
		list = &corev1.NodeList{}
	case endpoints:
		list = &corev1.EndpointsList{}
	default:
		list = &discoveryv1.EndpointSliceList{}
	}
	err := c.request(kind, options).Do(ctx).Into(list)
	return list, err
}

func (c objectClient) ListMetadata(ctx context.Context, kind string, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	list := &metav1.PartialObjectMetadataList{}
	err := c.request(kind, options).SetHeader("Accept", acceptMetadataList).Do(ctx).Into(list)
	return list, err
}

func (c objectClient) Watch(ctx context.Context, kind string, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	return c.request(kind, options).Watch(ctx)
}

func (c objectClient) request(kind string, options metav1.ListOptions) *rest.Request {
	group := c.core
	switch kind {
	case endpointSlices:
		group = c.discovery
	case endpoints:
		group = c.endpoints
	}
	request := group.Get().UseProtobufAsDefault().Resource(kind).VersionedParams(&options, c.parameters)
	if options.TimeoutSeconds != nil {
		request = request.Timeout(time.Duration(*options.TimeoutSeconds) * time.Second)
	}
	return request
}

// maskedCodecs are client-go's codecs with a maskedDecoder in front.
type maskedCodecs struct {
	runtime.NegotiatedSerializer
	masks *kindMasks
}

func (c maskedCodecs) DecoderToVersion(serializer runtime.Decoder, version runtime.GroupVersioner) runtime.Decoder {
	return maskedDecoder{
		full:  c.NegotiatedSerializer.DecoderToVersion(serializer, version),
		masks: c.masks,
	}
}

// maskedDecoder decodes only the used fields of the kinds that it knows. It passes everything else,
// and everything that it cannot decode, to the full decoder, which returns the error. It is safe
// for concurrent use.
type maskedDecoder struct {
	full  runtime.Decoder
	masks *kindMasks
}

// Decode decodes a list into into, or the object of a watch event if into is nil.
func (d maskedDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if version, kind, object, ok := unwrap(data); ok {
		if decoded := d.decodeKind(version+" "+kind, object, into); decoded != nil {
			gvk := schema.FromAPIVersionAndKind(version, kind)
			return decoded, &gvk, nil
		}
	}
	return d.full.Decode(data, defaults, into)
}

// decodeKind returns nil if it cannot decode the object.
func (d maskedDecoder) decodeKind(kind string, object []byte, into runtime.Object) runtime.Object {
	if into != nil {
		return d.decodeList(kind, object, into)
	}
	switch kind {
	case "v1 Pod":
		return d.decodePod(object)
	case "v1 Node":
		return d.masks.decodeNamed(object, d.masks.node, &corev1.Node{})
	case "v1 Service":
		return d.masks.decodeNamed(object, d.masks.service, &corev1.Service{})
	case "discovery.k8s.io/v1 EndpointSlice":
		return d.decodeSlice(object)
	case "v1 Endpoints":
		return d.decodeEndpoints(object)
	default:
		return nil
	}
}

func (d maskedDecoder) decodeList(kind string, object []byte, into runtime.Object) runtime.Object {
	switch list := into.(type) {
	case *corev1.PodList:
		if kind == "v1 PodList" && d.masks.decode(object, d.masks.podList, list) {
			return list
		}
	case *corev1.NodeList:
		if kind == "v1 NodeList" && d.masks.decode(object, d.masks.nodeList, list) {
			return list
		}
	}
	return nil
}

// decodePod decodes only the key and the version of a Pod, and keeps its other used fields encoded:
// while the caches are being filled, all Pods wait in this form.
func (d maskedDecoder) decodePod(object []byte) runtime.Object {
	lazy := &lazyPod{}
	ok := d.masks.filtered(object, d.masks.pod, func(used []byte) bool {
		lazy.encoded = bytes.Clone(used)
		return decodeKey(used, &lazy.ObjectMeta)
	})
	if !ok {
		return nil
	}
	return lazy
}

// decodeSlice decodes only the metadata of a slice.
func (d maskedDecoder) decodeSlice(object []byte) runtime.Object {
	var slice discoveryv1.EndpointSlice
	if !d.masks.decode(object, d.masks.sliceMeta, &slice) || slice.Name == "" {
		return nil
	}
	return &lazySlice{ObjectMeta: slice.ObjectMeta, encoded: object, masks: d.masks}
}

// decodeEndpoints decodes only the metadata of an Endpoints object.
func (d maskedDecoder) decodeEndpoints(object []byte) runtime.Object {
	var decoded corev1.Endpoints
	if !d.masks.decode(object, d.masks.sliceMeta, &decoded) || decoded.Name == "" {
		return nil
	}
	return &lazyEndpoints{ObjectMeta: decoded.ObjectMeta, encoded: object, masks: d.masks}
}
