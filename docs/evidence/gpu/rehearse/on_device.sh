# Rehearse on a machine with two GPUs and no package index.
# Usage: KENV=DIR OUT=DIR on_device.sh    DIR/env.sh puts PyTorch 2.15.0 on PYTHONPATH; the machine's own
# python3 has the old one. .whl holds wheels of what keepstep needs and src.tgz: git archive HEAD src jobs
# docs/evidence/gpu/rehearse. OUT gets one tar with everything. WORK_S: seconds for all of it.
: ${KENV:?} ${OUT:?}
W=${W:-$(mktemp -d)}
set -x
mkdir -p $W/repo $W/site $W/long
export XDG_CACHE_HOME=$W/c XDG_CONFIG_HOME=$W/k XDG_STATE_HOME=$W/s PYTHONUNBUFFERED=1
tar -xzf .whl/src.tgz -C $W/repo
${OWN:-python3} -m pip install -q --no-index --no-deps --no-compile --target $W/site .whl/*.whl
HERE=$W/repo/docs/evidence/gpu/rehearse
PLAN=${PLAN:-$HERE/plan.toml}
OWN=${OWN:-$(command -v python3)}
cat >$W/new <<X
#!/bin/bash
given=\$PYTHONPATH
. $KENV/env.sh
export PYTHONPATH=\$PYTHONPATH:\$given
exec ${STACK_PYTHON:-$OWN} "\$@"
X
cat >$W/old <<X
#!/bin/bash
exec ${STACK_PYTHON:-$OWN} "\$@"
X
chmod +x $W/new $W/old
ks() { PYTHONPATH=$W/site:$W/repo/src $OWN -c "from keepstep.cli.main import main; main()" "$@"; }
drill() { PYTHONPATH=$W/site:$W/repo/src timeout -k 5 240 $OWN $HERE/drill.py "$@"; }
export PATH=$W/site/bin:$PATH
nvidia-smi --query-gpu=name,driver_version --format=csv; nvidia-smi topo -m; uname -r; nproc
begun=$(date +%s)
ks stack create new --python $W/new &
ks stack create old --python $W/old
wait
date
R=$W/rehearsal
# One GPU: ranks share it, each a host of its own to NCCL.
if [ "$(nvidia-smi -L | wc -l)" = 1 ]; then
  sed -i "s/^gpus = 2/gpus = 1/" $PLAN
  sed -i "2i export NCCL_HOSTID=rank-\$RANK NCCL_SOCKET_IFNAME=lo" $W/new $W/old
fi
ks rehearse $PLAN --out $R --minutes 0 | tail -3
date
start() { # seconds to wait before, name
  sleep $1
  drill $PLAN $R $2 >$W/drill-$(echo $2 | tr / _).txt 2>&1
}
long() { # seconds to wait before, name: beside the rehearsal, with more time for an abort
  at=$W/long/$(echo $2 | tr / _)
  mkdir -p $at
  sleep $1
  drill $PLAN $at $2 100 >$at.txt 2>&1
}
drill $PLAN $R >$W/names.txt
# Ranks that hang keep their GPU busy: what is not to be disturbed begins with the others or late.
for name in $(grep -E "${DRILLS:-.}" $W/names.txt); do
  case $name in
    hang/2.15/*) start 0 $name & ;;
    hang/*) start 15 $name & ;;
    rollback/*) start 25 $name & ;;
    *) start 0 $name & ;;
  esac
done
for name in ${LONG-hang/2.15/nccl-legacy}; do long 15 $name & done
wait
date
tail -n 3 $W/drill-*.txt $W/long/*.txt 2>/dev/null
left=$((${WORK_S:-480} - $(date +%s) + begun))
sitting() { # seconds after which it is ended, seconds after which nothing new is begun
  PYTHONPATH=$W/site:$W/repo/src timeout -s TERM -k 20 $1 $OWN \
    -c "from keepstep.cli.main import main; main()" rehearse $PLAN --out $R \
    --minutes $($OWN -c "print(max(0.0, $2 / 60))") \
    >$W/report.txt 2>>$W/progress.txt
  echo "ended with $?"
}
sitting $left $((left - 25))
[ -s $W/report.txt ] || sitting 60 0 # it was ended: report what there is
date
tail -60 $W/progress.txt
cat $W/report.txt
cp $W/k/keepstep/receipt.pub $W/
find $R $W/long -size +3M -print -delete
tar czf $OUT/rehearsal.tgz --exclude="*.distcp" -C $W rehearsal long report.txt progress.txt receipt.pub new old $(cd $W; ls drill-*.txt)
ls -la $OUT
date
