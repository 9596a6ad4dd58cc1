package signing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Query selects signatures or statements.
type Query struct {
	PredicateType string // PredicateSign for signatures
	Verifiers     []Verifier
	// Enough reports whether the result of the referrers suffices, so that cosign's tag is not read; nil: one signature does.
	Enough func([]Signature) bool
	// Format: where to look; "" and FormatBoth are referrers, then cosign's older tag, ".sig" or of other statements ".att".
	Format Format
	// Limit bounds the referrers that are read, likely and new ones first; 0: the limit of signatures.
	Limit int
	// Stop is called after each referrer and reports whether the result suffices, so that no other is read; nil: all are read.
	Stop func([]Signature) bool
	// Keep is given the first good one of each verifier and principal for which Counts reports true; the result is without the predicates of the
	// others, which may be megabytes. nil: nothing is kept.
	Keep   *Keeper
	Counts func(Signature) bool // nil: all do
}

// Examine reads all possible signatures of subject, or statements of another type about it. An error means
// an invalid query; read errors are in the result.
func Examine(ctx context.Context, st Source, subject ocispec.Descriptor, q Query) (*Found, error) {
	if err := CheckSubject(st, subject); err != nil {
		return nil, err
	}
	if len(q.Verifiers) == 0 || q.PredicateType == "" {
		return nil, fmt.Errorf("verify %s@%s: %w: no key given", st.Name(), subject.Digest, fault.ErrInvalid)
	}
	if q.Enough == nil {
		q.Enough = func(good []Signature) bool { return len(good) > 0 }
	}
	e := examination{Query: q, st: st, subject: subject, Found: &Found{asked: q.Verifiers, what: q.PredicateType}, budget: newBudget(q.PredicateType)}
	if kept, ok := st.(KeptSource); ok {
		e.kept(ctx, kept)
		return e.Found, nil
	}
	if q.Format != FormatLegacy {
		e.referrers(ctx)
	}
	// A broken signature in a verifier's name is a security event; anyone can add a broken one without a name, which must not hide a
	// good signature.
	alarm := slices.ContainsFunc(e.Bad, func(r Remark) bool { return r.By != "" })
	if q.Format != FormatBundle && !alarm && !q.Enough(e.Good) {
		e.legacyTag(ctx)
	}
	return e.Found, nil
}

// examination collects the results about one subject.
type examination struct {
	Query
	*Found
	st      Source
	subject ocispec.Descriptor
	budget

	layer ocispec.Descriptor // the last one that was fetched
	data  []byte
	read  []string // what became good signatures: digests of manifests, and with them bundles that lists had of them
}

// budget bounds the reads for one subject: without it the limits of single reads would add up to gigabytes, at each try.
type budget struct {
	bytes  int64 // that may still be fetched
	pieces int   // of evidence that may still be checked
	over   bool
}

func newBudget(predicateType string) budget {
	if predicateType == PredicateSign {
		return budget{bytes: maxSignatureBytes, pieces: maxPieces}
	}
	return budget{bytes: maxStatementsBytes, pieces: maxPieces}
}

// afford takes the cost of a read from the budget. When that is used up, it reports it like [examination.miss], and nothing
// more is read.
func (e *examination) afford(where string, bytes int64, pieces int) bool {
	e.bytes -= bytes
	e.pieces -= pieces
	if e.bytes >= 0 && e.pieces >= 0 {
		return true
	}
	if !e.over {
		e.over = true
		e.miss(fmt.Errorf("%w: %s: it and what was looked at before are more than is looked at in all", fault.ErrTooLarge, where))
	}
	return false
}

// fetch reads a layer within the budget; false: the reason was recorded.
func (e *examination) fetch(ctx context.Context, where string, l ocispec.Descriptor, limit int64) ([]byte, bool) {
	if l.Size <= limit && !e.afford(where, max(0, l.Size), 1) { // a layer that is too large is rejected without fetching it
		return nil, false
	}
	data, err := readBlob(ctx, e.st, l, limit)
	if err != nil {
		e.missOrNote(where, err)
	}
	l.Data = nil
	e.layer, e.data = l, data
	return data, err == nil
}

// note records the result of one check. by is the claimed verifier, "" if unknown.
func (e *examination) note(where, by string, err error) {
	r := Remark{Where: where, Reason: err.Error()}
	switch {
	case errors.Is(err, errNoSignature):
		e.Beside = append(e.Beside, r)
	case errors.Is(err, ErrOtherSigner):
		if k := otherKey(""); errors.As(err, &k) {
			r.Key = digest.Digest(k)
		}
		e.Other = append(e.Other, r)
	default:
		r.By = by
		e.Bad = append(e.Bad, r)
	}
}

// miss records why something was not read: temporary errors have precedence over permanent ones, and our own limits come last,
// so that an attacker who fills a list cannot make "could not fetch" look final.
func (e *examination) miss(err error) {
	weight := func(err error) int {
		switch {
		case errors.Is(err, fault.ErrTemporary):
			return 2
		case errors.Is(err, fault.ErrTooLarge):
			return 0
		}
		return 1
	}
	if e.Unread == nil || weight(err) > weight(e.Unread) {
		e.Unread = err
	}
}

// missOrNote records the failure of a read.
func (e *examination) missOrNote(where string, err error) {
	if errors.Is(err, errMalformed) {
		e.note(where, "", err)
		return
	}
	e.miss(fmt.Errorf("%s: %w", where, err))
}

// referrers reads the lists of one place after the other until the result suffices. Besides good signatures, only the
// results of the last place count: a mirror's broken or missing entries are not final.
func (e *examination) referrers(ctx context.Context) {
	err := eachReferrers(ctx, e.st, e.subject, func(listed []ocispec.Descriptor) bool {
		e.begin(remarks{})
		e.list(ctx, listed)
		return e.Enough(e.Good)
	})
	switch {
	case errors.Is(err, fault.ErrNotFound): // also if a place does not have the subject
		e.begin(remarks{})
	case err != nil:
		e.miss(unread(err, "list referrers"))
	}
}

// remarks are the results of an examination besides good signatures.
type remarks struct {
	bad, other, beside []Remark
	unread             error
}

func (e *examination) remarks() remarks { return remarks{e.Bad, e.Other, e.Beside, e.Unread} }

// begin continues with another place, with its own budget, so that flooding one list does not affect the next.
func (e *examination) begin(known remarks) {
	e.budget = newBudget(e.PredicateType)
	e.Bad, e.Other, e.Beside, e.Unread = slices.Clip(known.bad), slices.Clip(known.other), slices.Clip(known.beside), known.unread
}

// list reads the referrers in the list of one place.
func (e *examination) list(ctx context.Context, listed []ocispec.Descriptor) {
	// Types in the registry's list are often wrong; they only decide the order, and nothing is filtered out by them. The type that
	// a bundle itself declares is used: a bundle of another declared kind is not fetched, so that
	// any number of other statements does not use up the budget.
	listed = slices.DeleteFunc(slices.Clone(listed), func(d ocispec.Descriptor) bool {
		declared := d.Annotations[AnnotationPredicateType]
		other := isBundleType(d.ArtifactType) && declared != "" && declared != e.PredicateType
		if other {
			e.note("referrer "+d.Digest.String(), "", otherKind(declared))
		}
		return other
	})
	slices.SortStableFunc(listed, func(a, b ocispec.Descriptor) int {
		return cmp.Or(cmp.Compare(e.likeliness(a), e.likeliness(b)),
			cmp.Compare(b.Annotations[ocispec.AnnotationCreated], a.Annotations[ocispec.AnnotationCreated]))
	})
	if limit := cmp.Or(e.Limit, maxReferrers); len(listed) > limit {
		e.miss(fmt.Errorf("%w: %d referrers, and not enough good ones among the first %d", fault.ErrTooLarge, len(listed), limit))
		listed = listed[:limit]
	}
	for _, d := range listed {
		if slices.Contains(e.read, d.Digest.String()) || slices.Contains(e.read, inList(d)) {
			continue // read from another place already
		}
		if e.referrer(ctx, d); e.over {
			return
		}
		if e.Stop != nil && e.Stop(e.Good) {
			return
		}
	}
}

// likeliness is lower for more likely referrers.
func (e *examination) likeliness(d ocispec.Descriptor) int {
	switch {
	case isBundleType(d.ArtifactType) && d.Annotations[AnnotationPredicateType] == e.PredicateType:
		return 0
	case isBundleType(d.ArtifactType):
		return 1
	case d.ArtifactType == "", d.ArtifactType == ocispec.MediaTypeEmptyJSON, d.ArtifactType == ocispec.MediaTypeImageConfig:
		return 2
	default:
		return 3
	}
}

// inList is a bundle in a list with the manifest that the list has it of: another place may have another bundle of that, and be right.
func inList(d ocispec.Descriptor) string {
	return d.Digest.String() + " " + d.Annotations[AnnotationBundle]
}

func (e *examination) referrer(ctx context.Context, d ocispec.Descriptor) {
	where, good := "referrer "+d.Digest.String(), len(e.Good)
	if d.Size > maxManifestBytes {
		e.Beside = append(e.Beside, Remark{Where: where, Reason: fmt.Sprintf("a manifest of %d bytes", d.Size)})
		return
	}
	if e.annotated(ctx, where, d) {
		return
	}
	data, m, err := readManifest(ctx, e.st, d)
	if err != nil {
		e.missOrNote(where, err)
		return
	}
	if !e.afford(where, int64(len(data)), 0) {
		return
	}
	if !slices.ContainsFunc(m.Layers, func(l ocispec.Descriptor) bool {
		return isBundleType(l.MediaType) || l.MediaType == MediaTypeSimpleSigning
	}) {
		e.Beside = append(e.Beside, Remark{Where: where, Reason: fmt.Sprintf("of type %.100q", cmp.Or(m.ArtifactType, m.Config.MediaType))})
		return
	}
	if len(m.Layers) > maxLegacyLayers {
		e.Bad = append(e.Bad, Remark{Where: where, Reason: fmt.Sprintf("%d layers", len(m.Layers))})
		return
	}
	bundles := 0
	for _, l := range m.Layers {
		if isBundleType(l.MediaType) {
			bundles++
		}
	}
	if bundles > 1 { // no tool writes several; each may be large
		e.Bad = append(e.Bad, Remark{Where: where, Reason: fmt.Sprintf("%d bundles in one", bundles)})
		return
	}
	for _, l := range m.Layers {
		switch {
		case e.over:
			return
		case isBundleType(l.MediaType):
			if text := m.Annotations[AnnotationBundle]; len(l.Data) == 0 && text != "" { // where the list does not show annotations
				l.Data = []byte(text)
			}
			e.bundleLayer(ctx, where, d.Digest, m.Annotations[AnnotationPredicateType], l)
		case l.MediaType == MediaTypeSimpleSigning: // cosign 2's experiment with referrers
			e.legacyLayer(ctx, where, l)
		}
	}
	if len(e.Good) > good {
		e.read = append(e.read, d.Digest.String())
	}
}

// annotated reads the bundle that a list of referrers has of one in an annotation, and reports whether it is a good signature. Otherwise
// nothing of it counts, and the manifest decides: the list has no digest, and a registry may have changed it.
func (e *examination) annotated(ctx context.Context, where string, d ocispec.Descriptor) bool {
	data := []byte(d.Annotations[AnnotationBundle])
	if !isBundleType(d.ArtifactType) || len(data) == 0 || len(data) > MaxAnnotatedBundle {
		return false
	}
	known, left, good := e.remarks(), e.budget, len(e.Good)
	l := ocispec.Descriptor{MediaType: d.ArtifactType, Digest: digest.FromBytes(data), Size: int64(len(data)), Data: data}
	e.bundleLayer(ctx, where, d.Digest, d.Annotations[AnnotationPredicateType], l)
	if len(e.Good) > good {
		e.read = append(e.read, inList(d))
		return true
	}
	e.begin(known)
	e.budget = left
	return false
}

// bundleLayer reads a bundle. declared is the referrer's type of its statement: another
// kind is not fetched, because it may be large. Whoever can write a false type could also remove the signature.
func (e *examination) bundleLayer(ctx context.Context, where string, at digest.Digest, declared string, l ocispec.Descriptor) {
	if declared != "" && declared != e.PredicateType {
		e.note(where, "", otherKind(declared))
		return
	}
	limit := int64(maxBundleBytes)
	if e.PredicateType != PredicateSign {
		limit = MaxStatementBytes
	}
	e.statementLayer(ctx, where, at, l, limit, func(data []byte) (*Evidence, *payload, error) { return openBundle(data, e.subject.Digest) })
}

// statementLayer reads a statement, which open takes out of what the layer has; at is the digest that names the signature.
func (e *examination) statementLayer(
	ctx context.Context, where string, at digest.Digest, l ocispec.Descriptor, limit int64, open func(data []byte) (*Evidence, *payload, error),
) {
	data, ok := e.fetch(ctx, where, l, limit)
	if !ok {
		return
	}
	evidence, said, err := open(data)
	if err != nil {
		e.note(where, "", err)
		return
	}
	if said.predicateType != e.PredicateType {
		e.note(where, "", otherKind(said.predicateType))
		return
	}
	claims, about := said.about(e.subject.Digest)
	s := Signature{Digest: at, Annotations: claims}
	if e.PredicateType != PredicateSign {
		s.Predicate = said.predicate
	}
	e.verifyEvidence(ctx, where, evidence, s, about)
}

func otherKind(predicateType string) error {
	return fmt.Errorf("a statement of type %.200q: %w", predicateType, errNoSignature)
}

// legacyTag reads cosign's older tag, at one place after the other.
func (e *examination) legacyTag(ctx context.Context) {
	tag := LegacyTag(e.subject.Digest)
	if e.PredicateType != PredicateSign {
		tag = AttestationTag(e.subject.Digest)
	}
	where := "tag " + tag
	before := e.remarks()
	err := EachResolve(ctx, e.st, tag, func(d ocispec.Descriptor) bool {
		e.begin(before)
		e.tagged(ctx, where, d.Digest)
		return e.Enough(e.Good)
	})
	switch {
	case errors.Is(err, fault.ErrNotFound):
		e.begin(before)
	case err != nil:
		e.miss(fmt.Errorf("%s: %w", where, unread(err, "resolve")))
	}
}

// tagged reads the signatures in the manifest d.
func (e *examination) tagged(ctx context.Context, where string, d digest.Digest) {
	_, m, err := readManifest(ctx, e.st, ocispec.Descriptor{Digest: d})
	if err != nil {
		e.missOrNote(where, err)
		return
	}
	layers := slices.DeleteFunc(m.Layers, func(l ocispec.Descriptor) bool {
		if e.PredicateType == PredicateSign {
			return l.MediaType != MediaTypeSimpleSigning
		}
		declared := l.Annotations[AnnotationStatement]
		return l.MediaType != MediaTypeEnvelope || declared != "" && declared != e.PredicateType
	})
	slices.Reverse(layers) // the newest is last
	if limit := cmp.Or(e.Limit, maxLegacyLayers); len(layers) > limit {
		e.miss(fmt.Errorf("%w: %s: %d signatures, and not enough good ones among the first %d", fault.ErrTooLarge, where, len(layers), limit))
		layers = layers[:limit]
	}
	for _, l := range layers {
		if l.MediaType == MediaTypeEnvelope {
			e.envelopeLayer(ctx, where, l)
		} else {
			e.legacyLayer(ctx, where, l)
		}
		if e.over || e.Stop != nil && e.Stop(e.Good) {
			return
		}
	}
}

func (e *examination) envelopeLayer(ctx context.Context, where string, l ocispec.Descriptor) {
	e.statementLayer(ctx, where, l.Digest, l, MaxStatementBytes, func(data []byte) (*Evidence, *payload, error) {
		return openEnvelope(data, l.Annotations, e.subject.Digest)
	})
}

func (e *examination) legacyLayer(ctx context.Context, where string, l ocispec.Descriptor) {
	if e.PredicateType != PredicateSign {
		e.Beside = append(e.Beside, Remark{Where: where, Reason: "a signature"})
		return
	}
	data, ok := e.fetch(ctx, where, l, maxPayloadBytes)
	if !ok {
		return
	}
	evidence, said, err := openLegacy(data, l.Annotations, e.subject.Digest)
	if err != nil {
		e.note(where, "", err)
		return
	}
	s := Signature{Digest: l.Digest, Annotations: stringClaims(said.annotations)}
	e.verifyEvidence(ctx, where, evidence, s, said.digest == e.subject.Digest.String())
}

// verifyEvidence checks one piece of evidence with each verifier. about reports whether the signed bytes name the subject: otherwise
// no signature counts.
func (e *examination) verifyEvidence(ctx context.Context, where string, evidence *Evidence, s Signature, about bool) {
	s.Format = evidence.Format
	if t, err := time.Parse(time.RFC3339, s.Annotations[AnnotationTime]); err == nil {
		s.Time = t.UTC()
		s.Annotations = maps.Clone(s.Annotations)
		delete(s.Annotations, AnnotationTime)
	}
	var refused error // a broken signature is reported before one of another signer
	by, vouched := "", false
	for _, t := range e.Verifiers {
		v, err := t.Verify(ctx, evidence)
		switch {
		case err != nil:
			if refused == nil || errors.Is(refused, ErrOtherSigner) && !errors.Is(err, ErrOtherSigner) {
				refused, by = err, t.VerifierName()
			}
			continue
		case !about:
			refused, by, vouched = errors.New("signature is of another artifact"), t.VerifierName(), false
		default:
			s.Verification, s.By, vouched = v, t.VerifierName(), true
			good := s
			switch {
			case e.Keep == nil:
			case e.first(s):
				e.Keep.add(s, Piece{Repository: e.st.Name(), Subject: e.subject.Digest, Type: e.PredicateType, Where: where, At: s.Digest, Layer: e.layer, Data: e.data})
			default:
				good.Predicate = nil
			}
			if !slices.ContainsFunc(e.Good, func(o Signature) bool { return o.By == s.By && signerOf(o) == signerOf(s) }) {
				e.Good = append(e.Good, good)
			}
			continue
		}
		break
	}
	if vouched {
		return
	}
	if errors.Is(refused, errSpeechless) {
		by = ""
	}
	e.note(where, by, refused)
}

// first reports whether a good signature counts and none of the same signer did before it.
func (e *examination) first(s Signature) bool {
	counts := func(o Signature) bool { return e.Counts == nil || e.Counts(o) }
	return counts(s) && !slices.ContainsFunc(e.Good, func(o Signature) bool { return o.By == s.By && o.Principal == s.Principal && counts(o) })
}
