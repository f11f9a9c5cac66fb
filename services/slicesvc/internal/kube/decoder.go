package kube

import (
	"bytes"
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

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
	if client.discovery, err = newRESTClient(own, discoveryv1.SchemeGroupVersion, codecs); err != nil {
		return nil, err
	}
	return client, nil
}

type objectClient struct {
	core, discovery rest.Interface
	parameters      runtime.ParameterCodec
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
	default:
		list = &discoveryv1.EndpointSliceList{}
	}
	err := c.request(kind, options).Do(ctx).Into(list)
	return list, err
}

func (c objectClient) Watch(ctx context.Context, kind string, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	return c.request(kind, options).Watch(ctx)
}

func (c objectClient) request(kind string, options metav1.ListOptions) *rest.Request {
	group := c.core
	if kind == endpointSlices {
		group = c.discovery
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

// kindMasks has the field mask of every kind. Field numbers are those of Kubernetes'
// generated.proto files, where a number never changes its meaning. A mask contains at least the
// fields that the strip function of its kind keeps.
type kindMasks struct {
	pod, node, service, slice, sliceMeta fieldMask
	podList, nodeList                    fieldMask
	// buffers has *[]byte for filtered messages.
	buffers sync.Pool
}

func newKindMasks() *kindMasks {
	var (
		pod = fieldMask{
			// name, namespace, uid, resourceVersion, creation and deletion timestamps, grace
			// period, labels; kind, name, uid, apiVersion and controller of owners; times of
			// managed fields
			1: union(wholeFields(1, 3, 5, 6, 8, 9, 10, 11), fieldMask{13: wholeFields(1, 3, 4, 5, 6), 17: wholeFields(4)}),
			2: union(
				wholeFields(10, 16, 17), // nodeName, hostname, subdomain
				fieldMask{
					2:  {6: wholeFields(1, 3, 4), 24: nil}, // containers: ports (name, number, protocol), restartPolicy
					20: {6: wholeFields(1, 3, 4), 24: nil}, // initContainers
				}),
			// phase, conditions (type, status, lastTransitionTime), podIPs
			3: {1: nil, 2: wholeFields(1, 2, 4), 12: nil},
		}
		node = fieldMask{
			1: wholeFields(1, 5, 6, 11),       // name, uid, resourceVersion, labels
			3: {2: nil, 4: wholeFields(1, 2)}, // allocatable, conditions (type, status)
		}
		service = fieldMask{
			1: wholeFields(1, 3, 5, 6, 8, 9, 11, 12), // as of a Pod, and annotations
			2: wholeFields(1, 2, 3, 4, 13, 19, 23),   // ports, selector, clusterIP, type, publishNotReadyAddresses, ipFamilies, trafficDistribution
		}
		// all but the field sets of managed fields
		meta  = union(wholeFields(1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14), fieldMask{17: wholeFields(1, 2, 4)})
		slice = union(wholeFields(2, 3, 4), fieldMask{1: meta})
	)
	return &kindMasks{
		buffers:   sync.Pool{New: func() any { return new([]byte) }},
		pod:       pod,
		node:      node,
		service:   service,
		slice:     slice,
		sliceMeta: fieldMask{1: meta},
		podList:   fieldMask{1: nil, 2: pod},
		nodeList:  fieldMask{1: nil, 2: node},
	}
}

func wholeFields(numbers ...protowire.Number) fieldMask {
	mask := fieldMask{}
	for _, number := range numbers {
		mask[number] = nil
	}
	return mask
}

// union returns the fields of two masks without a common field.
func union(a, b fieldMask) fieldMask {
	joined := fieldMask{}
	for _, mask := range []fieldMask{a, b} {
		for number, inner := range mask {
			joined[number] = inner
		}
	}
	return joined
}

// message is implemented by the generated types of Kubernetes.
type message interface {
	runtime.Object
	Reset()
	Unmarshal([]byte) error
}

type namedMessage interface {
	message
	GetName() string
}

// decodeNamed returns nil for an object without a name. The bookmark of a watch has none, and its
// annotations must reach the full decoder.
func (m *kindMasks) decodeNamed(object []byte, mask fieldMask, into namedMessage) runtime.Object {
	if !m.decode(object, mask, into) || into.GetName() == "" {
		return nil
	}
	return into
}

// decode resets into, decodes the masked fields of an object into it, and returns whether it could.
func (m *kindMasks) decode(object []byte, mask fieldMask, into message) bool {
	return m.filtered(object, mask, func(used []byte) bool {
		into.Reset()
		return into.Unmarshal(used) == nil
	})
}

// maxPooledBuffer is larger than a Pod or a Node. The buffer of a whole list is not pooled.
const maxPooledBuffer = 16 << 10

// filtered calls use with the masked fields of an object. use must not keep its argument. filtered
// returns whether the object could be filtered and use returned true.
func (m *kindMasks) filtered(object []byte, mask fieldMask, use func(used []byte) bool) bool {
	buffer, _ := m.buffers.Get().(*[]byte)
	used, err := mask.filter((*buffer)[:0], object)
	ok := err == nil && use(used)
	if cap(used) <= maxPooledBuffer {
		*buffer = used
		m.buffers.Put(buffer)
	}
	return ok
}
