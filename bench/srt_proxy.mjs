// Starts sandbox-runtime's HTTP proxy alone: the server that its sandbox would start, with its own allowlist
// matcher and resolved-address guard, without the SOCKS front end and without a per-session password.
//   node srt_proxy.mjs PACKAGE_DIR PORT HOST:PORT...
// With BENCH_HOST, BENCH_PLACEHOLDER and BENCH_VALUE set it terminates TLS and puts in one credential, by the hooks
// that its sandbox sets for `network.tlsTerminate` and a masked credential. The authority for the origin is Node's
// to know (NODE_EXTRA_CA_CERTS), as there.
import { pathToFileURL } from 'node:url'

const [packageDir, port, ...allowed] = process.argv.slice(2)
const load = name => import(pathToFileURL(`${packageDir}/dist/sandbox/${name}.js`).href)
const { createHttpProxyServer } = await load('http-proxy')
const { matchesDomainPattern, matchesDomainPatternWithPort } = await load('domain-pattern')
const { createResolvedAddressGuard } = await load('resolved-address-guard')
const { canonicalizeHost } = await load('parent-proxy')

async function termination() {
  const { BENCH_HOST: host, BENCH_PLACEHOLDER: placeholder, BENCH_VALUE: value } = process.env
  if (!host) return {}
  const { createMitmCA } = await load('mitm-ca')
  const { SentinelRegistry } = await load('credential-sentinel')
  const { AwsPairRegistry, createSigv4Planner } = await load('credential-aws-pairs')
  const credentials = new SentinelRegistry()
  const awsPairs = new AwsPairRegistry()
  credentials.registerWithSentinel('BENCH', placeholder, value, [host])
  return {
    mitmCA: createMitmCA({}),
    mutateHeaders: (headers, to) => credentials.substituteInHeaders(headers, to, matchesDomainPattern),
    getBodySubstitutions: to => credentials.sentinelsForHost(to, matchesDomainPattern),
    planSigv4: (...request) => createSigv4Planner(awsPairs, undefined, matchesDomainPattern)(...request),
  }
}

const guard = createResolvedAddressGuard({ allowedDomains: allowed })
const server = createHttpProxyServer({
  filter(targetPort, host) {
    const canonical = canonicalizeHost(host) ?? host
    return allowed.some(entry => matchesDomainPatternWithPort(canonical, targetPort, entry))
  },
  lookupFor: targetPort => guard.lookupFor(targetPort),
  ...(await termination()),
})
server.listen(Number(port), '127.0.0.1')
