package codes

// All explains every code, in the order of the checks. docs/troubleshoot lists each.
func All() []Doc {
	return []Doc{
		{SourceUnreachable, 1, true, "the registry, or the Margo manager, did not answer, answered with an error, or requested a later retry", "check the network, and what the message names; the device runs the accepted state and retries"},
		{SourceUnauthenticated, 1, true, "the registry, or the Margo manager, requires credentials, or rejects these", "set registry.authFile in agent.yaml, or log in as root: longshore login HOST"},
		{SourceDenied, 1, true, "the credentials are valid but do not permit this", "give the device's account pull rights on the repository"},
		{StateNotFound, 1, true, "nothing was published for this device, or the tag was deleted; running containers continue", "publish one: longshore state push --device DEVICE …; check device and state in agent.yaml"},
		{StateDigest, 2, true, "the registry, a mirror or the Margo manager sent bytes that do not match the digest", "check what sent them, and proxies on the way; the bytes were discarded"},
		{StateTooLarge, 2, true, "the state's manifest is over 1 MiB, or the State Manifest of a Margo manager over 4 MiB", "put fewer deployments into one state"},
		{StateUnsupported, 2, false, "the tag names an artifact that is not a device state, or a kind that this agent does not support", "check state in agent.yaml; upgrade longshore-agent"},
		{SignatureMissing, 3, true, "the state has no signature, and the policy requires one", "sign it: longshore sign --key KEY REFERENCE; a copy needs its signatures copied too: oras cp -r, regctl image copy --referrers --digest-tags, skopeo with use-sigstore-attachments"},
		{SignatureInvalid, 3, true, "the state is signed, but not by a key that the policy names", "check who signed it: longshore verify --policy /etc/longshore/trust.yaml REFERENCE; add the right key to trust.yaml"},
		{SignatureThreshold, 3, true, "fewer signers have signed than the policy requires", "the missing signers have to sign it: longshore sign --key KEY REFERENCE; the message names them"},
		{KeyExpired, 3, true, "a signature is by a key outside its validity in the policy", "sign it with a key that is trusted now, or renew the key's notAfter in trust.yaml; check the device's clock"},
		{AttestationMissing, 3, true, "the policy requires an attestation, such as a provenance, and too few of its signers have made one", "attest it: longshore attest --key KEY --type TYPE --predicate FILE REFERENCE"},
		{AttestationInvalid, 3, true, "the attestations of the type that the policy requires are not valid", "check who signed them: longshore verify --policy /etc/longshore/trust.yaml REFERENCE"},
		{SignatureRejected, 3, true, "no rule of the trust policy covers the repository, or its rule rejects everything", "add a rule for the repository to trust.yaml"},
		{WrongDevice, 4, false, "the state, or a deployment in it, is for another device", "publish a state for this device; check device in agent.yaml"},
		{Rollback, 5, false, "the generation is older than one that this device accepted", "publish the content as a new generation"},
		{GenerationConflict, 5, false, "the generation was accepted before with other content: two publishers, or an attack", "find out who publishes for this device, then publish a new generation"},
		{Expired, 6, true, "the state has expired; running containers continue", "publish a new generation; check the device's clock"},
		{StateStale, 6, true, "the policy requires a freshness statement, and there is no valid one: it was not renewed, or it is withheld; running containers continue", "renew it: longshore freshen --key KEY --for 48h REFERENCE; check the job that renews it, and the device's clock"},
		{StateInvalid, 7, false, "the state or its State Manifest is not valid", "check it: longshore check; publish a new generation"},
		{StateMixed, 7, false, "parts of the state belong to different states: its manifest, its State Manifest, its bundle and its deployments do not match", "find out who publishes for this device; publish a new generation"},
		{DeploymentInvalid, 7, false, "a deployment of the state is not valid", "check it: longshore check FILE; publish a new generation"},
		{ContentDigest, 7, true, "a deployment or the bundle does not match its digest", "check the registry, its mirrors and proxies; push the state again"},
		{ContentMissing, 7, true, "the registry lacks a deployment or the bundle of the state", "push the state again; check the registry's garbage collection"},
		{DeviceUnfit, 7, false, "this device does not meet the requirements of a deployment", "assign it to a device that fits; longshore-agent capabilities shows what this one reports"},
		{ComponentUnpinned, 8, false, "a component is named only by a tag, and this device requires digests", "publish with longshore state push, which pins every component"},
		{ComponentMissing, 8, true, "the registry lacks a component", "push the component again; check the registry's garbage collection"},
		{ComponentDigest, 8, true, "a component does not match its digest", "check the registry, its mirrors and proxies; push the component again"},
		{ComponentUnsigned, 8, true, "a component has no signature, and the policy requires one", "sign it: longshore sign --key KEY REFERENCE; a copy needs its signatures copied too: oras cp -r, regctl image copy --referrers --digest-tags, skopeo with use-sigstore-attachments"},
		{ComponentSignature, 8, true, "a component is signed, but not by a key that the policy names", "check who signed it: longshore verify --policy /etc/longshore/trust.yaml --kind component REFERENCE"},
		{ComponentRejected, 8, false, "the trust policy rejects a component's repository", "add a rule for the repository to trust.yaml"},
		{ComponentInvalid, 8, false, "a component's archive or compose.yaml is not valid, or uses a field that this device does not support", "the message names file, line and path; fix it and push a new version"},
		{ComponentUnsupported, 8, false, "the deployment is of a type that this device does not run", "assign it to a device that reports the type"},
		{PortConflict, 8, false, "two services publish the same port of the device", "change the published port of one of them"},
		{ImageUnpinned, 9, false, "an image is named only by a tag, and this device requires digests", "push the component with longshore component push, which locks every image"},
		{ImageUnsigned, 9, true, "an image has no signature, and the policy requires one", "sign it: longshore sign --key KEY REFERENCE; a copy needs its signatures copied too: oras cp -r, regctl image copy --referrers --digest-tags, skopeo with use-sigstore-attachments"},
		{ImageSignature, 9, true, "an image is signed, but not by a key that the policy names", "check who signed it: longshore verify --policy /etc/longshore/trust.yaml --kind image REFERENCE"},
		{ImageRejected, 9, false, "the trust policy rejects an image's repository", "add a rule for the repository to trust.yaml"},
		{ImagePlatform, 9, false, "an image does not support this device's platform", "build it for the platform and push the component again"},
		{ImageMissing, 9, true, "the registry lacks an image or a part of it", "push the image again, by the same digest; check the registry's garbage collection"},
		{ImageDigest, 9, true, "a part of an image does not match its digest", "check the registry, its mirrors and proxies; push the image again"},
		{ImagePull, 9, true, "an image could not be loaded or unpacked", "read the message; running containers continue, and the agent retries"},
		{UnknownChild, 0, false, "an application is assigned to a device behind this one, and there is none: the agent is not a gateway", "assign it to the device that shall run it"},
		{NoPlacement, 0, false, "an application is assigned to any device behind this one, and there is none: the agent is not a gateway", "assign it to the device that shall run it"},
		{Runtime, 0, true, "a containerd operation failed", "read the message and containerd's log; the agent retries"},
		{Admission, 0, true, "a deployment conflicts with something on this device; its running containers continue", "the message names the conflict; resolve it on the device, or change the deployment; the agent retries every minute"},
		{ContainerExited, 0, true, "a container exited with an error", "look at its output: longshore-agent logs DEPLOYMENT/SERVICE"},
		{Unhealthy, 0, true, "a container's health check fails", "look at its output: longshore-agent logs DEPLOYMENT/SERVICE"},
		{Timeout, 0, true, "a component was not up within its timeout", "read the services' output; increase the component's timeout"},
		{Stale, 0, true, "the accepted state has expired; running containers continue", "publish a new generation; check the device's clock"},
		{ContentDamaged, 0, true, "documents of the accepted state are lost or damaged on this device; running containers continue", "check the disk; the agent fetches them again when the registry answers"},
		{DatabaseDamaged, 0, true, "agent.db was damaged: it is kept as agent.db.damaged, and the agent created a new one; running containers continue, and no generation below that of its containers is accepted", "check the disk, and who can write to the data directory; publish a new generation if the one in the registry is refused"},
		{MirrorDigest, 0, true, "a mirror sent bytes that do not match the digest; they were discarded, and the next mirror or the registry was used", "check the mirror that the message names, or remove it from hosts.toml"},
		{FleetUnreachable, 0, true, "reports wait on the device: the fleet endpoint does not accept them", "check fleet.url, fleet.tokenFile and the network; nothing is lost"},
		{ReportUnpublished, 0, true, "the registry does not accept the report of the device's current state", "read the message; check report in agent.yaml, and that the account of report.authFile may push to the repository; after a change of a file restart the agent"},
		{ReportsLost, 0, false, "the outbox is full: the oldest reports were dropped", "the newest status of everything was kept and will be reported"},
		{Insecure, 0, false, "the policy accepts unsigned artifacts, or agent.yaml disables a protection", "remove allowUnsigned from trust.yaml, or the setting that the message names from agent.yaml"},
		{DiskFull, 0, true, "the disk is full; running containers continue", "make room on the device"},
		{DiskLow, 0, true, "a disk has less free space than images.minFree, so no image can be loaded; running containers continue", "make room on the device; removing an application also deletes what it wrote outside its volumes"},
		{PullStalled, 0, true, "almost no bytes of an image have arrived for minutes; running containers continue", "check the network and the registry: the connection is open, but no data arrives"},
		{TrustUnreachable, 0, true, "the repository with the next trust policy did not answer; the device uses its current version", "check the network and the registry; give the device pull rights on the repository that trust.yaml names; if devices reach only a mirror, name it as server in hosts.toml"},
		{TrustMissing, 0, true, "the repository that the trust policy names for its next version does not have the policy itself; the repository that it came from is also checked", "check trust.repository in the policy; publish a repaired version where this one came from: longshore trust push"},
		{TrustInvalid, 0, true, "the next trust policy is not valid, does not have the next version number, or too few of the old or the new signers signed it", "check what is in the registry: longshore trust history REPOSITORY; the device keeps its current version"},
		{TrustRollback, 0, true, "the tag of the next trust policy names an older one: a tag was moved, or an attack", "find out who writes to the repository; publish the next version: longshore trust push"},
		{TrustUnusable, 0, true, "after the next trust policy no other version could be signed, or it could never accept what it requires to be signed", "check it: longshore trust check FILE; publish a repaired version"},
		{TrustExpired, 0, true, "the trust policy has expired; it still applies, and nothing stops", "publish the next version: longshore trust push; check the device's clock"},
		{TrustUnused, 0, false, "trust.yaml on the device was changed and is ignored: a newer version from the registry applies", "give trust.yaml a higher version than the one in use, or publish the change: longshore trust push"},
		{KeyRevoked, 3, true, "the trust policy has revoked the signing key; running containers continue", "publish what it signed as a new generation, signed with another key"},
		{DigestRevoked, 3, true, "the trust policy has revoked this content; running containers continue", "publish a new generation without it"},
		{ClockWrong, 0, true, "the device's clock is behind the time of a signature, or differs from other clocks; nothing is stopped", "set the clock; let the device reach a time server"},
		{Config, 0, true, "a file of this device's registry configuration cannot be used: hosts.toml, a certificate, credentials; the registry was not contacted", "repair the file that the message names; longshore-agent check-config reads them all"},
		{Internal, 0, true, "an unexpected error", "report it with the agent's log"},
	}
}

// Explain explains a code.
func Explain(c Code) Doc {
	for _, d := range All() {
		if d.Code == c {
			return d
		}
	}
	return Doc{Code: c}
}
