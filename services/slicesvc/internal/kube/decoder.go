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
	kubewatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// NewObjectClient returns a ObjectClient that decodes no more of what it lists and watches than a
// Watch uses: it is good for nothing else. It contacts nobody.
func NewObjectClient(cfg *rest.Config) (ObjectClient, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	own := rest.CopyConfig(cfg)
	own.ContentType = runtime.ContentTypeProtobuf
	own.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	codecs := slimCodecs{NegotiatedSerializer: newSerializer(scheme), wanted: newTrees()}
	client := slimClient{parameters: runtime.NewParameterCodec(scheme)}
	if client.core, err = newRESTClient(own, corev1.SchemeGroupVersion, codecs); err != nil {
		return nil, err
	}
	if client.discovery, err = newRESTClient(own, discoveryv1.SchemeGroupVersion, codecs); err != nil {
		return nil, err
	}
	return client, nil
}

// slimClient decodes no more than a Watch uses.
type slimClient struct {
	core, discovery rest.Interface
	parameters      runtime.ParameterCodec
}

func (c slimClient) List(ctx context.Context, kind string, options metav1.ListOptions) (runtime.Object, error) {
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
	err := c.get(kind, options).Do(ctx).Into(list)
	return list, err
}

func (c slimClient) Watch(ctx context.Context, kind string, options metav1.ListOptions) (kubewatch.Interface, error) {
	options.Watch = true
	return c.get(kind, options).Watch(ctx)
}

// get asks for the objects of a kind, for as long as the options say.
func (c slimClient) get(kind string, options metav1.ListOptions) *rest.Request {
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

// slimCodecs are client-go's, with decoders that look at protobuf first.
type slimCodecs struct {
	runtime.NegotiatedSerializer
	wanted *trees
}

func (s slimCodecs) DecoderToVersion(serializer runtime.Decoder, version runtime.GroupVersioner) runtime.Decoder {
	return slimDecoder{
		whole:  s.NegotiatedSerializer.DecoderToVersion(serializer, version),
		wanted: s.wanted,
	}
}

// slimDecoder decodes of the objects it knows only what is used. Whatever it does
// not understand it leaves to the decoder of the whole, whose error counts. It is
// safe for concurrent use.
type slimDecoder struct {
	whole  runtime.Decoder
	wanted *trees
}

// Decode decodes an event's object, for which into is nil, or a list.
func (d slimDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if version, kind, object, ok := envelope(data); ok {
		if slim := d.slim(version+" "+kind, object, into); slim != nil {
			gvk := schema.FromAPIVersionAndKind(version, kind)
			return slim, &gvk, nil
		}
	}
	return d.whole.Decode(data, defaults, into)
}

// slim decodes an object of that version and kind; nil if it cannot.
func (d slimDecoder) slim(kind string, object []byte, into runtime.Object) runtime.Object {
	if into != nil {
		return d.list(kind, object, into)
	}
	switch kind {
	case "v1 Pod":
		return d.pod(object)
	case "v1 Node":
		return d.wanted.item(object, d.wanted.node, &corev1.Node{})
	case "v1 Service":
		return d.wanted.item(object, d.wanted.service, &corev1.Service{})
	case "discovery.k8s.io/v1 EndpointSlice":
		return d.sighting(object)
	default:
		return nil
	}
}

func (d slimDecoder) list(kind string, object []byte, into runtime.Object) runtime.Object {
	switch list := into.(type) {
	case *corev1.PodList:
		if kind == "v1 PodList" && d.wanted.decode(object, d.wanted.podList, list) {
			return list
		}
	case *corev1.NodeList:
		if kind == "v1 NodeList" && d.wanted.decode(object, d.wanted.nodeList, list) {
			return list
		}
	}
	return nil
}

// pod reads of a pod what tells it from others, and keeps what else is used of it
// for later: when the caches are filled, all pods wait in this form.
func (d slimDecoder) pod(object []byte) runtime.Object {
	seen := &podSighting{}
	ok := d.wanted.filtered(object, d.wanted.pod, func(used []byte) bool {
		seen.undecoded = bytes.Clone(used)
		return nameObject(used, &seen.ObjectMeta)
	})
	if !ok {
		return nil
	}
	return seen
}

// sighting decodes the metadata of a slice and keeps the rest for later.
func (d slimDecoder) sighting(object []byte) runtime.Object {
	var slice discoveryv1.EndpointSlice
	if !d.wanted.decode(object, d.wanted.sliceMeta, &slice) || slice.Name == "" {
		return nil
	}
	return &sighting{ObjectMeta: slice.ObjectMeta, undecoded: object, wanted: d.wanted}
}

// message is an object that decodes itself.
type message interface {
	runtime.Object
	Reset()
	Unmarshal([]byte) error
}

// named is a message that says what it is called.
type named interface {
	message
	GetName() string
}

// item decodes one object; nil for what has no name: the bookmarks of a watch
// have none, and of them annotations count.
func (t *trees) item(object []byte, wanted fields, to named) runtime.Object {
	if !t.decode(object, wanted, to) || to.GetName() == "" {
		return nil
	}
	return to
}

// largeRoom is more than a pod or a node needs; what a whole list needed is not kept.
const largeRoom = 16 << 10

// filtered gives use the wanted fields of an object, which it must not keep, and
// reports whether it could and use did.
func (t *trees) filtered(object []byte, wanted fields, use func(used []byte) bool) bool {
	room, _ := t.room.Get().(*[]byte)
	used, err := wanted.filter((*room)[:0], object)
	ok := err == nil && use(used)
	if cap(used) <= largeRoom {
		*room = used
		t.room.Put(room)
	}
	return ok
}

// decode decodes the wanted fields of an object into to, which it empties first,
// and reports whether it could.
func (t *trees) decode(object []byte, wanted fields, to message) bool {
	return t.filtered(object, wanted, func(used []byte) bool {
		to.Reset()
		return to.Unmarshal(used) == nil
	})
}
